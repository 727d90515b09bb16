"""python -m benchmarks.attribution_libraries: what each head does, by regard, TransformerLens, nnsight, captum, inseq.

SmolLM2 (135M, 30 layers of 9 heads) on one core. Each task is one fresh process: CPU seconds after the model is loaded,
which other work on the machine does not change, and by how much the peak of its memory grew. The answers are compared
with the first one's. Libraries that are not installed are left out: pip install transformer-lens nnsight captum inseq.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from benchmarks.timing import PEAK

SETUP = """
import os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
torch.set_num_threads(1)
from regard.seeing.text_models import load_text_model
found = load_text_model("smollm2", with_head=True)
hf, tokenizer = found.model, found.tokenizer
short = found.encode("When Mary and John went to the store, John gave a drink to").ids[None]
ids = short if TOKENS == 0 else torch.cat([torch.randint(100, 40000, (1, TOKENS - short.shape[1]),
                                           generator=torch.Generator().manual_seed(0)), short], 1)
mary, john = (tokenizer(" " + name, add_special_tokens=False)["input_ids"][0] for name in ("Mary", "John"))
difference = lambda logits: logits[:, -1, mary] - logits[:, -1, john]
"""

BRIDGE = """
from transformer_lens.model_bridge import TransformerBridge
hf.hf_quantizer, hf.is_quantized = None, False
bridge = TransformerBridge.boot_transformers("smollm2", hf_model=hf, tokenizer=tokenizer, device="cpu")
bridge.enable_compatibility_mode()
"""

ONE = """
open("/proc/self/clear_refs", "w").write("5")  # the peak of loading the model is not the work's: begin from now
before = peak()
start = time.process_time()
answer = work()
print("RESULT", time.process_time() - start, peak() - before, *(f"{float(x):.6f}" for x in answer.flatten()[:STRONG]))
"""

LOGITS = {
    "regard": """
from regard.seeing.analysis import logit_attribution
def work():
    return logit_attribution(hf, {"input_ids": ids}, mary, john).heads[0]
""",
    "transformer_lens": BRIDGE
    + """
@torch.no_grad()
def work():
    _, cache = bridge.run_with_cache(ids)
    right, wrong = (bridge.tokens_to_residual_directions(torch.tensor(token)) for token in (mary, john))
    heads = cache.apply_ln_to_stack(cache.stack_head_results(layer=-1, pos_slice=-1), layer=-1, pos_slice=-1)
    return (heads @ (right - wrong)).flatten()
""",
}

GRADIENTS = {
    "regard": """
import regard
def work():
    with regard.watch(hf, gradients=True) as seen:
        difference(hf(input_ids=ids).logits).sum().backward()
    return torch.stack([call.contributions().size()[0].sum(-1) for call in seen])
""",
    "eager, by hand": """
hf.set_attn_implementation("eager")
def work():
    out = hf(input_ids=ids, output_attentions=True)
    for w in out.attentions:
        w.retain_grad()
    difference(out.logits).sum().backward()
    return torch.stack([(w * w.grad)[0].abs().sum((-2, -1)) for w in out.attentions])
""",
}

ABLATION = {
    "regard": """
from regard.seeing.analysis import ablate
@torch.no_grad()
def work():
    with ablate(hf, heads={23: [3]}):
        return difference(hf(input_ids=ids).logits)
""",
    "nnsight": """
from nnsight import LanguageModel
lm = LanguageModel(hf, tokenizer=tokenizer)
@torch.no_grad()
def work():
    with lm.trace(ids):
        lm.model.layers[23].self_attn.o_proj.input[:, :, 3 * 64 : 4 * 64] = 0
        logits = lm.lm_head.output.save()
    return difference(logits)
""",
    "transformer_lens": BRIDGE
    + """
def silence(z, hook):
    z[:, :, 3] = 0
    return z
@torch.no_grad()
def work():
    return difference(bridge.run_with_hooks(ids, fwd_hooks=[("blocks.23.attn.hook_z", silence)]))
""",
}

INSIDE_NNSIGHT = {
    "regard": """
import regard
@torch.no_grad()
def work():
    with regard.watch(hf) as seen:
        hf(input_ids=ids)
    return torch.stack([call.weights.received()[0, :, 0] for call in seen])
""",
    "nnsight": """
import regard
from nnsight import LanguageModel
lm = LanguageModel(hf, tokenizer=tokenizer)
@torch.no_grad()
def work():
    with regard.watch(hf) as seen:
        with lm.trace(ids):
            logits = lm.lm_head.output.save()
    return torch.stack([call.weights.received()[0, :, 0] for call in seen])
""",
}

TOKENS = {
    "PyTorch, by hand": """
def work():
    embedding = hf.get_input_embeddings()(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(hf(inputs_embeds=embedding).logits[0, -1, mary], embedding)
    return (embedding * gradient).sum(-1)
""",
    "captum": """
from captum.attr import LayerGradientXActivation
def forward(x):
    return hf(input_ids=x).logits[:, -1, mary]
def work():
    return LayerGradientXActivation(forward, hf.get_input_embeddings()).attribute(ids).sum(-1)
""",
    "inseq": """
import inseq
model = inseq.load_model(hf, "input_x_gradient", tokenizer=tokenizer)
text = tokenizer.decode(ids[0])
def work():
    out = model.attribute(text, text + " Mary", show_progress=False, attributed_fn="logit")
    return out.sequence_attributions[0].target_attributions.sum(-1)[:, -1]
""",
}


BY_HAND = ("eager", "PyTorch")
"""What is no library of its own: the first answer of a task is what the others are compared with."""


@dataclass(frozen=True)
class Task:
    name: str
    tokens: int
    """Length of the text; 0 for the prompt alone."""
    codes: dict[str, str]
    compared: int
    """How many numbers of the answers are compared."""


TASKS = (
    Task("parts of a logit, all heads", 0, LOGITS, 270),
    Task("parts of a logit, all heads", 2048, LOGITS, 270),
    Task("attention × gradient, sums of all heads", 512, GRADIENTS, 270),
    Task("attention × gradient, sums of all heads", 2048, GRADIENTS, 270),
    Task("a logit without head 23.3", 0, ABLATION, 1),
    Task("weights on the first token, watched inside the other's trace", 0, INSIDE_NNSIGHT, 270),
    Task("input × gradient of each token, for one logit", 0, TOKENS, 12),
)


def measure(task: Task, code: str) -> tuple[float, float, list[float]]:
    """CPU seconds, MiB, and the answer's numbers."""
    parts = PEAK + SETUP + code + ONE
    text = parts.replace("TOKENS", str(task.tokens)).replace("STRONG", str(task.compared))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    seconds, more, *numbers = map(float, lines[-1].split()[1:])
    return seconds, more, numbers


def main() -> None:
    only = sys.argv[1:]
    print("| task | tokens | library | CPU s | MiB more | largest difference |\n|---|---:|---|---:|---:|---:|")
    for task in TASKS:
        if only and not any(word in task.name for word in only):
            continue
        reference: list[float] = []
        for library, code in task.codes.items():
            package = library.split(",")[0]
            if package not in ("regard", *BY_HAND) and find_spec(package) is None:
                continue
            name = library if package in BY_HAND else f"{library} {version(package.replace('_', '-'))}"
            try:
                seconds, more, numbers = measure(task, code)
            except RuntimeError as error:
                print(f"| {task.name} | {task.tokens or 'prompt'} | {name} | failed: {error} | | |", flush=True)
                continue
            reference = reference or numbers
            gap = max(abs(a - b) for a, b in zip(reference, numbers, strict=True))
            largest = max(map(abs, reference))
            print(
                f"| {task.name} | {task.tokens or 'prompt'} | {name} | {seconds:.2f} | {more:.0f} | "
                f"{gap:.1e} of {largest:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
