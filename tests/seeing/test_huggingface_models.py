"""What `watch` shows of Hugging Face models on their fast attention is what their own eager attention returns.

The table names each architecture: a tiny random model, a batch of two, one of them padded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from regard import watch

if TYPE_CHECKING:
    from regard import Seen

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
SEQ2SEQ = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
PICTURE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
PICTURE |= {"image_size": 16, "patch_size": 4}
SOUND = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
SOUND |= {"conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8), "num_feat_extract_layers": 2}
SOUND |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 20}


@dataclass
class Case:
    """An architecture: its name in transformers, its configuration, and what it is fed."""

    name: str
    options: dict[str, Any]
    feed: str = "text"
    model: str = "Model"
    implementations: tuple[str, ...] = ("sdpa", "eager")
    more: int = 0
    """Calls of attention that the model makes and does not return."""

    def build(self, implementation: str) -> nn.Module:
        torch.manual_seed(0)
        name = self.name
        config = getattr(transformers, f"{name}Config")(**self.options)
        config._attn_implementation = implementation
        model = getattr(transformers, f"{name}{self.model}")(config).eval()
        with torch.no_grad():  # random weights of 0.02 attend to all alike: a wrong mask would hardly show
            for weight in model.parameters():
                weight.mul_(4 if weight.dim() > 1 else 1)
                if weight.dim() == 1 and "sinks" not in name:
                    weight.add_(0.1 * torch.randn_like(weight))
        return model


CASES = [
    Case("Bert", SMALL),
    Case("Roberta", {**SMALL, "max_position_embeddings": 64}),
    Case("Albert", {**SMALL, "embedding_size": 16}),
    Case("DistilBert", {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}),
    Case("Electra", {**SMALL, "embedding_size": 16}),
    Case("ModernBert", {**SMALL, "num_hidden_layers": 4, "local_attention": 6}),
    Case("XLMRoberta", {**SMALL, "max_position_embeddings": 64}),
    Case("MPNet", {**SMALL, "max_position_embeddings": 64}, implementations=("eager",)),
    Case("GPT2", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    Case("GPTNeoX", SMALL),
    Case("OPT", {**SMALL, "ffn_dim": 37, "word_embed_proj_dim": 32}),
    Case("Llama", GROUPED),
    Case("Mistral", {**GROUPED, "sliding_window": 3}),
    Case("Qwen2", GROUPED),
    Case("Qwen3", GROUPED),
    Case("Gemma", GROUPED),
    Case("Gemma2", {**GROUPED, "sliding_window": 3, "attn_logit_softcapping": 2.0}, implementations=("eager",)),
    Case("Gemma3Text", {**GROUPED, "sliding_window": 3, "query_pre_attn_scalar": 5}),
    Case("Phi", SMALL),
    Case("Phi3", {**SMALL, "num_key_value_heads": 2}),
    Case("Olmo2", GROUPED),
    Case("StableLm", {**SMALL, "num_key_value_heads": 2}),
    Case("Cohere", GROUPED),
    Case("Granite", {**GROUPED, "attention_multiplier": 0.3}),
    Case("Starcoder2", {**SMALL, "num_key_value_heads": 2}),
    Case(
        "GptOss",
        {**GROUPED, "sliding_window": 3, "num_local_experts": 2, "num_experts_per_tok": 1},
        implementations=("eager",),
    ),
    Case("Bloom", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}, implementations=("eager",)),
    Case(
        "GPTJ", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}, implementations=("eager",)
    ),
    # Without ALiBi: with it, Transformers 5.22 adds the bias twice in Falcon's eager attention and once in its sdpa.
    Case("Falcon", {**SMALL, "alibi": False, "multi_query": True, "new_decoder_architecture": False}),
    Case(
        "T5",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4, "pad_token_id": 0},
        "pair",
    ),
    Case("Bart", SEQ2SEQ, "pair"),
    Case("Marian", SEQ2SEQ, "pair"),
    Case("Pegasus", SEQ2SEQ, "pair"),
    Case("M2M100", SEQ2SEQ, "pair"),
    Case("Whisper", {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 64}, "mel"),
    Case("ViT", PICTURE, "picture"),
    Case("Dinov2", PICTURE, "picture"),
    Case("CLIPVision", PICTURE, "picture"),
    Case("SiglipVision", PICTURE, "picture", more=1),  # attention pools its output
    Case("Wav2Vec2", SOUND, "sound"),
    Case("Hubert", SOUND, "sound"),
]


def fed(case: Case) -> dict[str, Tensor]:
    torch.manual_seed(1)
    if case.feed == "picture":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    if case.feed == "sound":
        return {"input_values": torch.randn(2, 200)}
    ids = torch.randint(3, 50, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    if case.feed == "mel":
        return {"input_features": torch.randn(2, 8, 24), "decoder_input_ids": ids}
    if case.feed == "pair":
        return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.randint(3, 50, (2, 4))}
    return {"input_ids": ids, "attention_mask": mask}


def eager_weights(case: Case) -> list[Tensor]:
    with torch.no_grad():
        out = case.build("eager")(**fed(case), output_attentions=True)
    if case.feed in ("pair", "mel"):
        crossing = [x for pair in zip(out.decoder_attentions, out.cross_attentions, strict=True) for x in pair]
        return [*out.encoder_attentions, *crossing]
    return list(out.attentions)


@pytest.mark.parametrize(
    ("case", "implementation"),
    [(case, x) for case in CASES for x in case.implementations],
    ids=[f"{case.name}-{x}" for case in CASES for x in case.implementations],
)
def test_weights_are_those_of_eager_attention(case: Case, implementation: str) -> None:
    wanted = eager_weights(case)
    model = case.build(implementation)
    with torch.no_grad(), watch(model) as seen:
        model(**fed(case))
    assert len(seen) == len(wanted) + case.more
    agree(seen, wanted, padded="attention_mask" in fed(case))


def agree(seen: Seen, wanted: list[Tensor], padded: bool = False) -> None:
    assert not seen.missed
    for call, theirs in zip(seen, wanted, strict=False):
        ours = call.weights.tile(slice(None), slice(None))
        assert ours.shape == theirs.shape
        difference = (ours - theirs).abs()
        if padded and ours.shape[-2] == 7:
            # What filling attends to differs between implementations, and nobody reads it.
            difference[1, :, 5:] = 0
        assert float(difference.max()) < 2e-5, f"{call!r}: {float(difference.max())}"
        assert call.fidelity().faithful is True, f"{call!r}: {call.fidelity()}"


def test_the_table_names_at_least_25_architectures() -> None:
    assert len({case.name for case in CASES}) >= 25


WRITERS = [
    Case("Llama", GROUPED, model="ForCausalLM"),
    Case("GPT2", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4}, model="LMHeadModel"),
    Case("Mistral", {**GROUPED, "sliding_window": 4}, model="ForCausalLM"),
    Case("Gemma3", {**GROUPED, "sliding_window": 4}, model="ForCausalLM"),
]


def written(case: Case, implementation: str, keep: str | None = None, **options: Any) -> tuple[Seen, Tensor]:
    """A generation of five words after a prompt of six, watched."""
    if case.name == "Gemma3":
        case = Case("Gemma3Text", case.options)
        config = transformers.Gemma3TextConfig(**case.options)
        config._attn_implementation = implementation
        torch.manual_seed(0)
        model = transformers.Gemma3ForCausalLM(config).eval()
    else:
        model = case.build(implementation)
    torch.manual_seed(1)
    prompt = torch.randint(3, 50, (1, 6))
    with watch(model, keep=keep) as seen:
        ids = model.generate(prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False, eos_token_id=2, **options)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return seen, model(ids[:, :-1], output_attentions=True).attentions


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("case", WRITERS, ids=lambda case: case.name)
def test_a_generation_is_one_matrix_per_layer(case: Case, implementation: str) -> None:
    seen, wanted = written(case, implementation)
    assert len(seen) == len(wanted) == 2
    assert seen.prompt == 6
    assert seen[0].steps == [6, 1, 1, 1, 1]
    agree(seen, list(wanted))


def test_a_cache_of_fixed_size_is_cut_to_what_it_holds() -> None:
    seen, wanted = written(WRITERS[0], "sdpa", cache_implementation="static", disable_compile=True)
    assert len(seen) == 2
    assert [call.v.shape[1] for call in seen] == [2, 2]  # heads repeated for the kernel are kept once
    agree(seen, list(wanted))


@pytest.mark.parametrize("keep", [None, "cpu"])
def test_a_cache_of_fixed_size_under_eager_attention_is_one_matrix(keep: str | None) -> None:
    """Here the layer is given the whole buffer from the beginning, and it is filled in place."""
    seen, wanted = written(WRITERS[0], "eager", keep=keep, cache_implementation="static", disable_compile=True)
    assert [call.kind for call in seen] == ["self", "self"]
    for call, theirs in zip(seen, wanted, strict=True):
        ours = call.weights.tile(slice(None), slice(None))
        assert float((ours[..., : theirs.shape[-1]] - theirs).abs().max()) < 2e-5
        assert float(ours[..., theirs.shape[-1] :].sum()) == 0
        assert call.fidelity().faithful


LATENT = {**SMALL, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
LATENT |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1}
LATENT |= {"topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 16}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_keys_projected_from_a_cache_of_fixed_size_are_one_matrix(implementation: str) -> None:
    """Multi-head latent attention projects keys from the whole cache at every step; they lie in no buffer."""
    case = Case("DeepseekV3", LATENT, model="ForCausalLM")
    seen, wanted = written(case, implementation, cache_implementation="static", disable_compile=True)
    assert [call.steps for call in seen] == [[6, 1, 1, 1, 1]] * 2
    agree(seen, list(wanted))


def test_padding_on_the_left_of_a_model_with_sinks() -> None:
    """A sink takes rows of filling whole: their weights are zero in eager attention too."""
    case = Case(
        "GptOss",
        {**GROUPED, "sliding_window": 3, "num_local_experts": 2, "num_experts_per_tok": 1},
        model="ForCausalLM",
    )
    model, ids, mask = case.build("eager"), torch.arange(3, 15).view(2, 6), torch.ones(2, 6).long()
    mask[1, :3] = 0
    with torch.no_grad(), watch(model) as seen:
        wanted = model(ids, attention_mask=mask, output_attentions=True).attentions
    assert seen.faithful is True, seen
    for call, theirs in zip(seen, wanted, strict=True):
        torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_translations_are_one_matrix_per_layer_and_kind(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    case = Case(name, {**case.options, "decoder_start_token_id": 1}, model="ForConditionalGeneration")
    model = case.build("sdpa")
    torch.manual_seed(1)
    source = torch.randint(3, 50, (2, 6))
    with watch(model) as seen:
        ids = model.generate(source, max_new_tokens=5, min_new_tokens=5, do_sample=False, num_beams=1, eos_token_id=2)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(source, decoder_input_ids=ids[:, :-1], output_attentions=True)
    crossing = [x for pair in zip(out.decoder_attentions, out.cross_attentions, strict=True) for x in pair]
    assert [call.kind for call in seen] == ["self", "self", *["self", "cross"] * 2]
    agree(seen, [*out.encoder_attentions, *crossing])


def test_beams_that_change_places_are_calls_of_their_own() -> None:
    model = WRITERS[0].build("sdpa")
    torch.manual_seed(1)
    with watch(model) as seen:
        model.generate(torch.randint(3, 50, (1, 6)), max_new_tokens=5, min_new_tokens=5, num_beams=3, eos_token_id=2)
    assert sum(sum(call.steps) for call in seen if call.layer == 0) >= 6 + 4
    assert all(call.fidelity().faithful and call.fidelity().error is not None for call in seen)


def test_padding_on_the_left_of_a_batch_that_generates() -> None:
    case = WRITERS[0]
    model = case.build("sdpa")
    torch.manual_seed(1)
    ids = torch.randint(3, 50, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with watch(model) as seen:
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False, eos_token_id=2
        )
    weights = seen[0].weights.tile(slice(None), slice(None))
    assert weights.shape == (2, 4, 9, 9)
    assert float(weights[1, :, 3:, :3].max()) == 0  # nobody looks at the filling
    assert all(call.fidelity().faithful for call in seen)
    # Alone and without filling, the second entry attends the same way.
    with torch.no_grad(), watch(model) as alone:
        model(out[1:, 3:-1], position_ids=torch.arange(6)[None])
    shown = alone[0].weights.tile(slice(None), slice(None))
    assert float((weights[1:, :, 3:, 3:] - shown).abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_entry_of_padding_alone_is_shown_as_it_was_computed(implementation: str, dtype: torch.dtype) -> None:
    """T5 adds finfo.min to the energies of closed keys, and a row of nothing else attends to all alike."""
    case = next(case for case in CASES if case.name == "T5")
    model = case.build(implementation).to(dtype)
    ids = torch.randint(3, 50, (2, 6))
    mask = torch.ones_like(ids)
    mask[1] = 0
    with torch.no_grad(), watch(model) as seen:
        model.encoder(input_ids=ids, attention_mask=mask)
    for call in seen:
        assert call.fidelity().faithful
        w = call.weights
        dense = w.dense()
        torch.testing.assert_close(w.tile(slice(None), slice(None)), dense, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(w.received(), dense.sum(-2), rtol=1e-5, atol=1e-5)
        # In float16 finfo.min is -65,504, to which energies of this size are not rounded.
        if dtype != torch.float16:
            torch.testing.assert_close(w[1].tile(0, slice(None)), torch.full((4, 1, 6), 1 / 6), rtol=0, atol=1e-2)
