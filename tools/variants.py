"""Attention as it was published since 2014: each variant's formula written plainly, and the same by `attend`.

`python -m tools.variants_page` writes docs/variants.md from this table; tests/attention/test_variants.py holds the two
sides of each row together in float64. A function below is a paper's formula. It takes the inputs that its arguments
name (`inputs`) and returns outputs and weights. The code by `attend` has the same inputs in scope, and leaves z and w.
"""

# ruff: noqa: E501 (a formula stands in one line, as on the page)

from __future__ import annotations

import math
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard import Additive, Concat, General, Weights

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, H, D, R, BLOCK = 1, 4, 8, 6, 3
"""Batch entries, heads, width of a head, rank of what is compressed, tokens of a block."""
WIDTH = H * D
Result = tuple[Tensor, Tensor | None]
"""Outputs and weights."""


def inputs(tokens: int, dtype: torch.dtype = torch.float64) -> dict[str, object]:
    """What the formulas and the code take, by name; `tokens` is a multiple of `BLOCK`."""
    torch.manual_seed(0)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return size * torch.randn(*shape, dtype=dtype)

    T = tokens
    modules = {"additive": Additive(D, D, 16), "general": General(D, D), "concat": Concat(D, D, 16)}
    modules["intra"] = Additive(2 * WIDTH, WIDTH, 16)
    given: dict[str, object] = {name: module.to(dtype) for name, module in modules.items()}
    for module in modules.values():
        module.weight.data.mul_(4)
    given |= {name: normal(BATCH, H, T, D, size=1.5) for name in ("q", "k", "q2", "k2")}
    given |= {name: normal(BATCH, H, T, D) for name in ("v", "v_1", "gate")}
    given |= {"k_2": normal(BATCH, 2, T, D), "v_2": normal(BATCH, 2, T, D)}
    given |= {"k_1": normal(BATCH, 1, T, D), "v_one": normal(BATCH, 1, T, D)}
    given |= {name: normal(BATCH, T, WIDTH) for name in ("x", "h", "c", "h_before")}
    given |= {name: normal(WIDTH, WIDTH, size=0.2) for name in ("w_q", "w_k", "w_v", "w_o")}
    given |= {"latent": normal(BATCH, T, R), "u_k": normal(H, D, R), "u_v": normal(H, D, R)}
    given |= {"q_r": normal(BATCH, H, T, 4), "k_r": normal(BATCH, 1, T, 4)}
    given |= {"a_k": normal(7, D), "a_v": normal(7, D), "table": normal(32, H), "r": normal(T, D)}
    given |= {"u": normal(H, 1, D), "v_r": normal(H, 1, D), "sink": normal(H)}
    given |= {"mix_e": torch.eye(H) + normal(H, H, size=0.3), "mix_w": torch.eye(H) + normal(H, H, size=0.3)}
    given |= {"lam": torch.rand(H, 1, 1, dtype=dtype), "f": 2 + normal(BATCH, H, T), "theta": normal(H, 1, 2, 3)}
    given |= {"g": normal(3, BATCH, H, T, 1).sigmoid(), "q_i": normal(BATCH, T, 2, D), "k_i": normal(BATCH, T, D)}
    given |= {"w_i": normal(BATCH, T, 2), "a": normal(3, BATCH, T, 2, H), "b": normal(3, BATCH, T, 2, D)}
    given |= {"e_k": normal(R, T, size=0.5), "e_v": normal(R, T, size=0.5), "conv": normal(D, D, BLOCK, size=0.3)}
    given |= {"m_k": normal(H, 2, D), "m_v": normal(H, 2, D), "beta": torch.rand(BATCH, H, T, dtype=dtype)}
    given |= {"alpha": 0.7 + 0.3 * torch.rand(BATCH, H, T, dtype=dtype), "s": torch.tensor(0.6, dtype=dtype)}
    given |= {"alphas": 0.7 + 0.3 * torch.rand(BATCH, H, T, D, dtype=dtype)}
    given |= {"p": T * torch.rand(BATCH, H, T, dtype=dtype), "ids": torch.arange(T) * 3 // T}
    given |= {"gamma": 1 - 2.0 ** -torch.arange(2, 2 + H, dtype=dtype)[:, None, None]}
    return given


def scope(given: dict[str, object]) -> dict[str, object]:
    """What the code has beside its inputs: regard, torch, sizes, and the places i of queries and j of keys."""
    T = given["q"].shape[-2]  # type: ignore[attr-defined]
    places = {"T": T, "D": D, "H": H, "i": torch.arange(T)[:, None], "j": torch.arange(T), "blocks": blocks}
    own = {name: getattr(regard, name) for name in regard.__all__}
    return own | {"torch": torch, "F": F, "math": math, "inf": math.inf} | places | given


def run(variant: Variant, given: dict[str, object]) -> tuple[Tensor, Weights | Tensor | None]:
    names = scope(given)
    exec(variant.code, names)
    return names["z"], names.get("w")  # type: ignore[return-value]


@dataclass(frozen=True)
class Variant:
    name: str
    paper: str
    arxiv: str
    formula: str
    code: str
    plain: Callable[..., Result]
    """The paper's formula."""
    usual: Callable[..., Result]
    """How models compute it: what is watched."""
    remark: str

    def arguments(self, given: dict[str, object]) -> dict[str, object]:
        return {name: given[name] for name in signature(self.plain).parameters}


VARIANTS: list[Variant] = []


def variant(
    name: str,
    paper: str,
    arxiv: str,
    formula: str,
    code: str,
    *,
    usual: Callable[..., Result] | None = None,
    remark: str = "",
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    def add(plain: Callable[..., Result]) -> Callable[..., Result]:
        VARIANTS.append(Variant(name, paper, arxiv, formula, code.strip(), plain, usual or plain, remark))
        return plain

    return add


# What the formulas share


def places(x: Tensor) -> tuple[Tensor, Tensor]:
    T = x.shape[-2]
    return torch.arange(T)[:, None], torch.arange(T)


def causal(e: Tensor) -> Tensor:
    i, j = places(e)
    return e.masked_fill(j > i, -torch.inf)


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def average(w: Tensor, v: Tensor) -> Result:
    return w @ v, w


def blocks(x: Tensor) -> Tensor:
    """Means of `BLOCK` rows each."""
    return x.unflatten(-2, (-1, BLOCK)).mean(-2)


def by_sdpa(**options: object) -> Callable[..., Result]:
    """PyTorch's kernel: no matrix."""

    def usual(q: Tensor, k: Tensor, v: Tensor) -> Result:
        return F.scaled_dot_product_attention(q, k, v, **options), None  # type: ignore[arg-type]

    return usual


# 2014 to 2016: alignments


@variant(
    "Additive", "Bahdanau, Cho & Bengio 2015", "1409.0473", "e_ij = uᵀ tanh(W q_i + U k_j)",
    "z, w = attend(q, k, v, energy=additive, weights=True)  # additive = Additive(D, D, 16)",
)  # fmt: skip
def additive(q, k, v, additive):
    W, U, u = additive.query.weight, additive.key.weight, additive.weight
    e = torch.tanh((q @ W.T)[..., :, None, :] + (k @ U.T)[..., None, :, :]) @ u
    return average(e.softmax(-1), v)


@variant(
    "Content-based (cosine)", "Graves, Wayne & Danihelka 2014", "1410.5401", "w_i = softmax(β q_i·k_j / |q_i| |k_j|)",
    "z, w = attend(q, k, v, energy=Cosine(), normalize=Softmax(1 / 5.0), weights=True)  # β = 5",
)  # fmt: skip
def cosine(q, k, v):
    e = torch.stack([F.cosine_similarity(q, k[..., j : j + 1, :], dim=-1) for j in range(k.shape[-2])], -1)
    return average((5 * e).softmax(-1), v)


@variant(
    "Hard", "Xu et al. 2015", "1502.03044", "w_ij = 1 for j = argmax e_i, else 0; in training sampled from softmax(e_i)",
    "z, w = attend(q, k, v, normalize=Hard(), weights=True)",
    remark='`Hard("reinforce")` and `Hard("straight-through")` sample in training.',
)  # fmt: skip
def hard(q, k, v):
    return average(F.one_hot(scaled(q, k).argmax(-1), k.shape[-2]).to(v), v)


@variant(
    "Luong, dot", "Luong, Pham & Manning 2015", "1508.04025", "e_ij = q_i·k_j",
    "z, w = attend(q, k, v, energy=Dot(), weights=True)",
)  # fmt: skip
def luong_dot(q, k, v):
    return average((q @ k.mT).softmax(-1), v)


@variant(
    "Luong, general", "Luong, Pham & Manning 2015", "1508.04025", "e_ij = q_iᵀ W k_j",
    "z, w = attend(q, k, v, energy=general, weights=True)  # general = General(D, D)",
)  # fmt: skip
def luong_general(q, k, v, general):
    return average((q @ general.weight @ k.mT).softmax(-1), v)


@variant(
    "Luong, concat", "Luong, Pham & Manning 2015", "1508.04025", "e_ij = uᵀ tanh(W [q_i; k_j])",
    "z, w = attend(q, k, v, energy=concat, weights=True)  # concat = Concat(D, D, 16)",
)  # fmt: skip
def luong_concat(q, k, v, concat):
    T, S = q.shape[-2], k.shape[-2]
    both = torch.cat([q[..., :, None, :].expand(-1, -1, -1, S, -1), k[..., None, :, :].expand(-1, -1, T, -1, -1)], -1)
    return average((both @ concat.joint.weight.T).tanh().matmul(concat.weight).softmax(-1), v)


@variant(
    "Local-m", "Luong, Pham & Manning 2015", "1508.04025", "softmax over the keys |j − i| ≤ 2",
    "z, w = attend(q, k, v, energy=Dot(), mask=window(3), weights=True)",
)  # fmt: skip
def local_m(q, k, v):
    i, j = places(q)
    return average((q @ k.mT).masked_fill((j - i).abs() > 2, -torch.inf).softmax(-1), v)


@variant(
    "Local-p", "Luong, Pham & Manning 2015", "1508.04025",
    "w_ij = softmax over |j − p_i| ≤ 2 of e_ij, times exp(−(j − p_i)² / 2σ²), σ = 1",
    """
near = (j - p[..., None]).abs() <= 2
_, flat = attend(q, k, v, energy=Dot(), mask=near, weights=True)
z, w = attend(q, k, v, energy=Modified(Dot(), Bias(-0.5 * (j - p[..., None]) ** 2)), mask=near, weights=True)
share = (w.logsumexp() - flat.logsumexp()).exp()[..., None]  # what the Gaussian leaves of each row
z, w = share * z, share * w
""",
)  # fmt: skip
def local_p(q, k, v, p):
    _, j = places(q)
    apart = j - p[..., None]
    w = (q @ k.mT).masked_fill(apart.abs() > 2, -torch.inf).softmax(-1)
    return average(w * torch.exp(-(apart**2) / 2), v)


@variant(
    "LSTMN", "Cheng, Dong & Lapata 2016", "1601.06733",
    "e_ti = uᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t−1}) over i < t; z_t = [h̃_t; c̃_t] = Σ_i w_ti [h_i; c_i]",
    """
query, tape = torch.cat([x, h_before], -1), torch.cat([h, c], -1)
z, w = attend(query, h, tape, energy=intra, mask=causal(-1), weights=True)  # intra = Additive(2 * width, width, 16)
""",
    remark="The first token sees nothing and gets zeros. A recurrent model goes token by token: `attend_step`.",
)  # fmt: skip
def lstmn(x, h_before, h, c, intra):
    W_x, W_b = intra.query.weight.split(x.shape[-1], dim=1)
    tape, T = torch.cat([h, c], -1), x.shape[1]
    outs, weights = [torch.zeros_like(tape[:, :1])], [torch.zeros(BATCH, 1, T).to(x)]
    for t in range(1, T):
        a = torch.tanh(h[:, :t] @ intra.key.weight.T + (x[:, t] @ W_x.T + h_before[:, t] @ W_b.T)[:, None])
        w = (a @ intra.weight).softmax(-1)[:, None]
        outs, weights = [*outs, w @ tape[:, :t]], [*weights, F.pad(w, (0, T - t))]
    return torch.cat(outs, 1), torch.cat(weights, 1)


@variant(
    "Sparsemax", "Martins & Astudillo 2016", "1602.02068", "w_i = the point of the simplex nearest to e_i",
    "z, w = attend(q, k, v, normalize=Sparsemax(), weights=True)",
)  # fmt: skip
def sparsemax(q, k, v):
    e = scaled(q, k)
    ordered = e.sort(-1, descending=True).values
    counts = torch.arange(1, e.shape[-1] + 1)
    thresholds = (ordered.cumsum(-1) - 1) / counts
    size = (ordered > thresholds).sum(-1, keepdim=True)
    return average((e - thresholds.gather(-1, size - 1)).relu(), v)


@variant(
    "α-entmax", "Peters, Niculae & Martins 2019", "1905.05702",
    "w_ij = max((α − 1) e_ij − τ_i, 0)^(1/(α−1)), α = 1.5",
    "z, w = attend(q, k, v, normalize=Entmax(1.5), weights=True)",
)  # fmt: skip
def entmax(q, k, v):
    x = scaled(q, k) / 2
    low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(100):  # bisection for Σ_j w_ij = 1
        middle = (low + high) / 2
        heavy = ((x - middle).relu() ** 2).sum(-1, keepdim=True) >= 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    return average((x - low).relu() ** 2, v)


# 2017 to 2022: Transformers


@variant(
    "Scaled dot product", "Vaswani et al. 2017", "1706.03762", "softmax(QKᵀ / √d) V",
    "z, w = attend(q, k, v, mask=causal(), weights=True)",
    usual=by_sdpa(is_causal=True),
)  # fmt: skip
def scaled_dot_product(q, k, v):
    return average(causal(scaled(q, k)).softmax(-1), v)


@variant(
    "Multi-head", "Vaswani et al. 2017", "1706.03762", "[z¹; …; z^H] W_o with z^h = softmax(x W_q^h (x W_k^h)ᵀ / √d) x W_v^h",
    """
q, k, v = (F.linear(x, weight).unflatten(-1, (H, D)).transpose(1, 2) for weight in (w_q, w_k, w_v))
z, w = attend(q, k, v, weights=True)
z = F.linear(z.transpose(1, 2).flatten(-2), w_o)
""",
    usual=lambda x, w_q, w_k, w_v, w_o: F.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3, WIDTH, H, torch.cat([w_q, w_k, w_v]), None, None, None, False, 0.0, w_o, None,
        need_weights=False,
    ),
)  # fmt: skip
def multi_head(x, w_q, w_k, w_v, w_o):
    outs, weights = [], []
    for h in range(H):
        rows = slice(h * D, (h + 1) * D)
        w = scaled(x @ w_q[rows].T, x @ w_k[rows].T).softmax(-1)
        outs, weights = [*outs, w @ (x @ w_v[rows].T)], [*weights, w]
    return torch.cat(outs, -1) @ w_o.T, torch.stack(weights, 1)


@variant(
    "Relative positions (Shaw)", "Shaw, Uszkoreit & Vaswani 2018", "1803.02155",
    "e_ij = q_i·(k_j + a^K_{j−i}) / √d, z_i = Σ_j w_ij (v_j + a^V_{j−i}), distances cut at ±3",
    """
near = (j - i).clamp(-3, 3) + 3
bias = (q @ a_k.mT).gather(-1, near.expand(1, H, T, T)) / D**0.5
z, w = attend(q, k, v, energy=Modified(ScaledDot(), Bias(bias)), weights=True)
z = z + torch.einsum("bhij,ijd->bhid", w.dense(), a_v[near])
""",
    remark="The values' share depends on the distance, so that what flows is W·v and a second product with the same weights.",
)  # fmt: skip
def shaw(q, k, v, a_k, a_v):
    i, j = places(q)
    near = (j - i).clamp(-3, 3) + 3
    w = (torch.einsum("bhid,bhijd->bhij", q, k[..., None, :, :] + a_k[near]) / math.sqrt(D)).softmax(-1)
    return torch.einsum("bhij,bhijd->bhid", w, v[..., None, :, :] + a_v[near]), w


@variant(
    "Memory-compressed", "Liu et al. 2018", "1801.10198", "keys and values are strided convolutions over 3 tokens",
    """
k, v = (F.conv1d(x.flatten(0, 1).mT, conv, stride=3).mT.unflatten(0, (1, H)) for x in (k, v))
z, w = attend(q, k, v, weights=True)
""",
    remark="A key is three tokens, so the matrix is T × T/3.",
)  # fmt: skip
def memory_compressed(q, k, v, conv):
    def compress(x):
        return torch.stack([torch.einsum("dcn,bhnc->bhd", conv, x[..., t : t + BLOCK, :])
                            for t in range(0, x.shape[-2], BLOCK)], -2)  # fmt: skip

    return average(scaled(q, compress(k)).softmax(-1), compress(v))


@variant(
    "Transformer-XL", "Dai et al. 2019", "1901.02860", "e_ij = ((q_i + u)·k_j + (q_i + v)·r_{i−j}) / √d",
    """
bias = ((q + v_r) @ r.mT).gather(-1, (i - j).clamp_min(0).expand(1, H, T, T)) / D**0.5
z, w = attend(q + u, k, v, energy=Modified(ScaledDot(), Bias(bias)), mask=causal(), weights=True)
""",
)  # fmt: skip
def transformer_xl(q, k, v, r, u, v_r):
    i, j = places(q)
    e = (q + u) @ k.mT + torch.einsum("bhid,ijd->bhij", q + v_r, r[(i - j).clamp_min(0)])
    return average(causal(e / math.sqrt(D)).softmax(-1), v)


@variant(
    "Persistent memory", "Sukhbaatar et al. 2019", "1907.01470", "softmax(Q [K; M_k]ᵀ / √d) [V; M_v], M learned",
    """
keys, values = torch.cat([m_k[None], k], -2), torch.cat([m_v[None], v], -2)
z, w = attend(q, keys, values, mask=causal(2), weights=True)  # the two learned keys are seen by all
""",
)  # fmt: skip
def persistent_memory(q, k, v, m_k, m_v):
    e = torch.cat([q @ m_k.mT, causal(q @ k.mT)], -1) / math.sqrt(D)
    return average(e.softmax(-1), torch.cat([m_v.expand(BATCH, -1, -1, -1), v], -2))


@variant(
    "Relative positions (T5)", "Raffel et al. 2020", "1910.10683", "e_ij = q_i·k_j + b_{bucket(j−i)}, no scale",
    "z, w = attend(q, k, v, energy=Modified(Dot(), RelativeBias(table)), weights=True)",
)  # fmt: skip
def t5(q, k, v, table):
    def bucket(distance: int) -> int:
        far, after = abs(distance), 16 if distance > 0 else 0
        return after + (far if far < 8 else min(15, 8 + int(math.log(far / 8) / math.log(128 / 8) * 8)))

    T = q.shape[-2]
    bias = torch.stack([torch.stack([table[bucket(j - i)] for j in range(T)]) for i in range(T)]).permute(2, 0, 1)
    return average((q @ k.mT + bias).softmax(-1), v)


@variant(
    "Prefix LM", "Raffel et al. 2020", "1910.10683", "query i sees keys j ≤ i and the first 4",
    "z, w = attend(q, k, v, mask=causal() | prefix(4), weights=True)",
)  # fmt: skip
def prefix_lm(q, k, v):
    i, j = places(q)
    return average(scaled(q, k).masked_fill((j > i) & (j >= 4), -torch.inf).softmax(-1), v)


@variant(
    "Multi-query", "Shazeer 2019", "1911.02150", "z^h = softmax(Q^h Kᵀ / √d) V: one key and value head",
    "z, w = attend(q, k_1, v_one, mask=causal(), weights=True)",
    usual=lambda q, k_1, v_one: (F.scaled_dot_product_attention(q, k_1, v_one, is_causal=True, enable_gqa=True), None),
)  # fmt: skip
def multi_query(q, k_1, v_one):
    return average(causal(scaled(q, k_1)).softmax(-1), v_one)


@variant(
    "Talking heads", "Shazeer et al. 2020", "2003.02436", "z^h = Σ_g P_hg softmax(Σ_f L_gf Q^f K^fᵀ / √d) V^h",
    """
queries = torch.einsum("hg,bgtd->bhtgd", mix_e, q).flatten(-2)[:, :, None]  # Σ_g L_hg q_g·k_g is one dot product
keys = k.transpose(1, 2).flatten(-2)[:, None, None]
z, w = attend(queries, keys, v[:, None], energy=ScaledDot(D**-0.5), mask=causal(), weights=True)
z = torch.einsum("hg,bghtd->bhtd", mix_w, z)
w = sum(mix_w[:, g, None, None] * w[:, g] for g in range(H))
""",
)  # fmt: skip
def talking_heads(q, k, v, mix_e, mix_w):
    e = torch.einsum("gf,bfij->bgij", mix_e, scaled(q, k))
    return average(torch.einsum("hg,bgij->bhij", mix_w, causal(e).softmax(-1)), v)


@variant(
    "Window", "Beltagy, Peters & Cohan 2020", "2004.05150", "query i sees the last 4 keys",
    "z, w = attend(q, k, v, mask=causal() & window(4), weights=True)",
)  # fmt: skip
def sliding_window(q, k, v):
    i, j = places(q)
    return average(causal(scaled(q, k)).masked_fill(i - j >= 4, -torch.inf).softmax(-1), v)


@variant(
    "Compressed keys (Linformer)", "Wang et al. 2020", "2006.04768", "softmax(Q (E K)ᵀ / √d) F V, E and F learned [r, T]",
    "z, w = attend(q, e_k @ k, e_v @ v, weights=True)",
    remark="A key is a learned mixture of all tokens: the matrix over tokens is W E for keys, W F for values.",
)  # fmt: skip
def linformer(q, k, v, e_k, e_v):
    return average(scaled(q, e_k @ k).softmax(-1), e_v @ v)


@variant(
    "Linear", "Katharopoulos et al. 2020", "2006.16236", "z_i = φ(q_i)ᵀ Σ_{j≤i} φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_{j≤i} φ(k_j), φ = elu + 1",
    """
q, k = F.elu(q) + 1, F.elu(k) + 1
z, w = attend(q, k, v, energy=Dot(), normalize=Proportional(), mask=causal(), weights=True)
""",
    remark="Its code has no weights, but a state; they are implied: φ(q_i)·φ(k_j) over their sum.",
)  # fmt: skip
def linear(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = (k[..., :, None] * v[..., None, :]).cumsum(-3)  # [..., T, d, d_v]
    total = (q * k.cumsum(-2)).sum(-1, keepdim=True)
    return torch.einsum("bhid,bhide->bhie", q, state) / total, (q @ k.mT).tril() / total


@variant(
    "Query-key norm", "Henry et al. 2020", "2010.04245", "softmax(g q̂_i·k̂_j), q̂ = q / |q|, g learned",
    "z, w = attend(s * F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, energy=Dot(), weights=True)",
)  # fmt: skip
def query_key_norm(q, k, v, s):
    e = s * q @ k.mT / (q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :])
    return average(e.softmax(-1), v)


@variant(
    "Rotary", "Su et al. 2021", "2104.09864", "e_ij = (R_i q_i)·(R_j k_j) / √d",
    "z, w = attend(q, k, v, energy=Rotary(), mask=causal(), weights=True)",
)  # fmt: skip
def rotary(q, k, v):
    def turned(x):
        angle = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(D // 2).to(x) / (D // 2))
        y = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([y.real, y.imag], -1)

    return average(causal(scaled(turned(q), turned(k))).softmax(-1), v)


@variant(
    "Documents in one row", "Krell et al. 2021", "2107.02027", "query i sees keys j ≤ i of its own document",
    "z, w = attend(q, k, v, mask=causal() & documents(ids), weights=True)",
)  # fmt: skip
def packed_documents(q, k, v, ids):
    return average(causal(scaled(q, k)).masked_fill(ids[:, None] != ids, -torch.inf).softmax(-1), v)


@variant(
    "ALiBi", "Press, Smith & Lewis 2022", "2108.12409", "e_ij = q_i·k_j / √d − m_h (i − j), m_h = 2^(−8h/H)",
    "z, w = attend(q, k, v, energy=Modified(ScaledDot(), Alibi(H)), mask=causal(), weights=True)",
)  # fmt: skip
def alibi(q, k, v):
    i, j = places(q)
    slope = 2.0 ** (-8 * torch.arange(1, H + 1) / H)
    return average(causal(scaled(q, k) - slope[:, None, None] * (i - j)).softmax(-1), v)


# 2023 to 2026: large language models


@variant(
    "Grouped-query", "Ainslie et al. 2023", "2305.13245", "z^h = softmax(Q^h K^gᵀ / √d) V^g, g = ⌊h G / H⌋",
    "z, w = attend(q, k_2, v_2, mask=causal(), weights=True)  # four query heads, two key and value heads",
    usual=lambda q, k_2, v_2: (F.scaled_dot_product_attention(q, k_2, v_2, is_causal=True, enable_gqa=True), None),
)  # fmt: skip
def grouped_query(q, k_2, v_2):
    group = torch.arange(H) // 2
    return average(causal(scaled(q, k_2[:, group])).softmax(-1), v_2[:, group])


@variant(
    "Retention", "Sun et al. 2023", "2307.08621", "z_i = Σ_{j≤i} γ^{i−j} (q_i·k_j) v_j",
    "z, w = attend(q * gamma**i, k * gamma**-i, v, energy=Dot(), normalize=Unnormalized(), mask=causal(), weights=True)",
    remark="No softmax: weights are signed. `Modified(Dot(), lambda e, batch, i, j: …)` takes long rows, where γ^−i overflows.",
)  # fmt: skip
def retention(q, k, v, gamma):
    state, outs, weights = torch.zeros(BATCH, H, D, D).to(q), [], []
    for t in range(q.shape[-2]):
        state = gamma * state + k[..., t, :, None] * v[..., t, None, :]
        outs.append(torch.einsum("bhd,bhde->bhe", q[..., t, :], state))
        i = torch.arange(t + 1)
        row = gamma.squeeze(-1) ** (t - i) * torch.einsum("bhd,bhjd->bhj", q[..., t, :], k[..., : t + 1, :])
        weights.append(F.pad(row, (0, q.shape[-2] - t - 1)))
    return torch.stack(outs, -2), torch.stack(weights, -2)


@variant(
    "First tokens and window", "Xiao et al. 2024", "2309.17453", "query i sees the first 2 keys and the last 3",
    "z, w = attend(q, k, v, mask=causal() & (prefix(2) | window(3)), weights=True)",
)  # fmt: skip
def streaming(q, k, v):
    i, j = places(q)
    return average(causal(scaled(q, k)).masked_fill((i - j >= 3) & (j >= 2), -torch.inf).softmax(-1), v)


@variant(
    "Multi-head latent (MLA)", "DeepSeek-AI 2024", "2405.04434", "k_j^h = [U_k^h c_j; k_j^r], v_j^h = U_v^h c_j; softmax(q·k / √(d + d_r))",
    """
k, v = (torch.einsum("btr,hdr->bhtd", latent, u) for u in (u_k, u_v))
keys = torch.cat([k, k_r.expand(-1, H, -1, -1)], -1)
z, w = attend(torch.cat([q, q_r], -1), keys, v, mask=causal(), weights=True)
""",
)  # fmt: skip
def mla(q, q_r, k_r, latent, u_k, u_v):
    k = torch.einsum("hdr,btr->bhtd", u_k, latent)
    e = (q @ k.mT + q_r @ k_r.mT) / math.sqrt(D + 4)
    return average(causal(e).softmax(-1), torch.einsum("hdr,btr->bhtd", u_v, latent))


def absorbed_by_sdpa(q, q_r, k_r, latent, u_k, u_v):
    query = torch.cat([torch.einsum("bhtd,hdr->bhtr", q, u_k), q_r], -1)
    cache = torch.cat([latent[:, None], k_r], -1).expand(-1, H, -1, -1)
    values = latent[:, None].expand(-1, H, -1, -1)
    z = F.scaled_dot_product_attention(query, cache, values, is_causal=True, scale=(D + 4) ** -0.5)
    return torch.einsum("bhtr,hdr->bhtd", z, u_v), None


@variant(
    "MLA, absorbed", "DeepSeek-AI 2024", "2405.04434", "the same: q·(U_k c) = (U_kᵀ q)·c, so that keys and values are the cache",
    """
query = torch.cat([torch.einsum("bhtd,hdr->bhtr", q, u_k), q_r], -1)
cache = torch.cat([latent[:, None], k_r], -1)  # one head
z, w = attend(query, cache, latent[:, None], energy=ScaledDot((D + 4) ** -0.5), mask=causal(), weights=True)
z = torch.einsum("bhtr,hdr->bhtd", z, u_v)
""",
    usual=absorbed_by_sdpa,
)  # fmt: skip
def mla_absorbed(q, q_r, k_r, latent, u_k, u_v):
    return mla(q, q_r, k_r, latent, u_k, u_v)


@variant(
    "Soft cap", "Gemma Team 2024", "2408.00118", "e_ij = c tanh(q_i·k_j / c √d), c = 2",
    "z, w = attend(q, k, v, energy=Modified(ScaledDot(), SoftCap(2.0)), mask=causal(), weights=True)",
)  # fmt: skip
def soft_cap(q, k, v):
    return average(causal(2 * torch.tanh(scaled(q, k) / 2)).softmax(-1), v)


@variant(
    "Sigmoid", "Ramapuram et al. 2024", "2409.04431", "w_ij = σ(q_i·k_j / √d + b), b = −log T",
    "z, w = attend(q, k, v, normalize=Sigmoid(-math.log(T)), mask=causal(), weights=True)",
)  # fmt: skip
def sigmoid(q, k, v):
    return average(torch.sigmoid(causal(scaled(q, k) - math.log(k.shape[-2]))), v)


@variant(
    "Selective", "Leviathan, Kalman & Matias 2024", "2410.02703", "e_ij = q_i·k_j / √d − Σ_{l<i} relu(e⁰_lj), without l = j and without j = 0",
    """
wishes = (q[:, :1] @ k[:, :1].mT / D**0.5).relu().tril(-1) * (j > 0)  # head 0 decides for all
hidden = F.pad(wishes.cumsum(-2), (0, 0, 1, -1))  # what earlier queries wished
z, w = attend(q, k, v, energy=Modified(ScaledDot(), Bias(-hidden)), mask=causal(), weights=True)
""",
)  # fmt: skip
def selective(q, k, v):
    e, T = scaled(q, k), q.shape[-2]
    hidden = torch.zeros_like(e[:, 0])
    for i in range(T):
        for j in range(1, T):
            hidden[:, i, j] = sum(e[:, 0, earlier, j].relu() for earlier in range(j + 1, i))
    return average(causal(e - hidden[:, None]).softmax(-1), v)


@variant(
    "Differential", "Ye et al. 2024", "2410.05258", "(softmax(Q₁K₁ᵀ / √d) − λ softmax(Q₂K₂ᵀ / √d)) V",
    """
(z1, w1), (z2, w2) = (attend(a, b, v, mask=causal(), weights=True) for a, b in ((q, k), (q2, k2)))
z, w = z1 - lam * z2, w1 - lam * w2
""",
    remark="λ is one number for a layer in the paper, one per head here; one per token broadcasts as well.",
)  # fmt: skip
def differential(q, k, q2, k2, v, lam):
    return average(causal(scaled(q, k)).softmax(-1) - lam * causal(scaled(q2, k2)).softmax(-1), v)


@variant(
    "Stick-breaking", "Tan et al. 2025", "2410.17980", "w_ij = σ(e_ij) Π_{j<k<i} (1 − σ(e_ik)), j < i",
    "z, w = attend(q, k, v, normalize=StickBreaking(), mask=causal(-1), weights=True)",
)  # fmt: skip
def stick_breaking(q, k, v):
    i, j = places(q)
    e, before = scaled(q, k), j < i
    left = F.logsigmoid(-e).masked_fill(~before, 0)
    return average(
        (F.logsigmoid(e).masked_fill(~before, -torch.inf) + left.flip(-1).cumsum(-1).flip(-1) - left).exp(), v
    )


@variant(
    "Value residual", "Zhou et al. 2024", "2410.17897", "softmax(QKᵀ / √d) (λ V + (1 − λ) V₁), V₁ of the first layer",
    "z, w = attend(q, k, s * v + (1 - s) * v_1, mask=causal(), weights=True)",
    usual=lambda q, k, v, v_1, s: (
        F.scaled_dot_product_attention(q, k, s * v + (1 - s) * v_1, is_causal=True), None
    ),
)  # fmt: skip
def value_residual(q, k, v, v_1, s):
    return average(causal(scaled(q, k)).softmax(-1), s * v + (1 - s) * v_1)


@variant(
    "Cog", "Lv et al. 2024", "2411.07176", "w_ij = sign(e_ij) exp|e_ij| / Σ_j exp|e_ij|",
    """
def cog(e, seen):
    return e.sign() * e.abs().masked_fill(~seen, -inf).softmax(-1)


z, w = attend(q, k, v, normalize=cog, mask=causal(), weights=True)
""",
)  # fmt: skip
def cog(q, k, v):
    e = scaled(q, k)
    return average(e.sign() * causal(e.abs()).softmax(-1), v)


@variant(
    "Gated delta", "Yang, Kautz & Hatamizadeh 2024", "2412.06464", "S_t = α_t S_{t−1} (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ, z_t = S_t q_t",
    """
decay, k = alpha.log().cumsum(-1), F.normalize(k, dim=-1)
decay = (decay[..., :, None] - decay[..., None, :]).exp().tril()
known = torch.linalg.inv(torch.eye(T) + (beta[..., None] * (k @ k.mT) * decay).tril(-1))
w = (q @ k.mT * decay) @ known * beta[..., None, :]
z, w = attend(w, torch.eye(T).to(v), v, energy=Dot(), normalize=Unnormalized(), weights=True)
""",
    remark="A recurrence, no weights; the matrix that it implies is signed. It is formed, and `attend` has it as queries of one-hot keys.",
)  # fmt: skip
def gated_delta(q, k, v, alpha, beta):
    return kimi_delta(q, k, v, alpha[..., None].expand_as(k), beta)


@variant(
    "Tensor product", "Zhang et al. 2025", "2501.06425", "q_t = ¹⁄_R Σ_r a_r(x_t) ⊗ b_r(x_t) over heads ⊗ width; k and v alike",
    """
q, k, v = (torch.einsum("btrh,btrd->bhtd", heads, width) / 2 for heads, width in zip(a, b))
z, w = attend(q, k, v, mask=causal(), weights=True)
""",
)  # fmt: skip
def tensor_product(a, b):
    q, k, v = ((a[n].mT @ b[n] / a.shape[-2]).transpose(1, 2) for n in range(3))
    return average(causal(scaled(q, k)).softmax(-1), v)


@variant(
    "Scalable softmax", "Nakanishi 2025", "2501.19399", "w_ij = softmax(s log(n_i) e_ij), n_i the keys that i sees",
    "z, w = attend(s * (i + 1.0).to(q).log() * q, k, v, mask=causal(), weights=True)",
    usual=lambda q, k, v, s: (
        F.scaled_dot_product_attention(s * (places(q)[0] + 1.0).to(q).log() * q, k, v, is_causal=True), None
    ),
)  # fmt: skip
def scalable_softmax(q, k, v, s):
    i, _ = places(q)
    w = ((i + 1.0) ** (s * scaled(q, k))).tril()
    return average(w / w.sum(-1, keepdim=True), v)


@variant(
    "Native sparse (NSA)", "Yuan et al. 2025", "2502.11089", "g_1 Attn(Q, K_compressed) + g_2 Attn(Q, K_selected) + g_3 Attn(Q, K_window)",
    """
z_c, w_c = attend(q, blocks(k), blocks(v), mask=3 * torch.arange(T // 3) + 2 <= i, weights=True)  # a key is 3 tokens
top = (i // 3 == torch.arange(T // 3)).expand(w_c.shape).scatter(-1, w_c.top(1).indices, True).repeat_interleave(3, -1)
(z_s, w_s), (z_w, w_w) = (attend(q, k, v, mask=causal() & m, weights=True) for m in (dense(top), window(3)))
z = g[0] * z_c + g[1] * z_s + g[2] * z_w
w = g[0] * Weights.of_matrix(w_c.dense().repeat_interleave(3, -1) / 3) + g[1] * w_s + g[2] * w_w
""",
    remark="Blocks are compressed by their mean here, by a learned function in the paper.",
)  # fmt: skip
def native_sparse(q, k, v, g):
    i, j = places(q)
    block = torch.arange(q.shape[-2] // BLOCK)
    mean_k, mean_v = (torch.stack([x[..., n * BLOCK : (n + 1) * BLOCK, :].mean(-2) for n in block], -2) for x in (k, v))
    e = scaled(q, mean_k).masked_fill(block * BLOCK + BLOCK - 1 > i, -torch.inf)
    compressed = e.softmax(-1).nan_to_num(0)
    chosen = F.one_hot(compressed.argmax(-1), len(block)).bool() | (block == i // BLOCK)
    selected = causal(scaled(q, k)).masked_fill(~chosen.repeat_interleave(BLOCK, -1), -torch.inf).softmax(-1)
    near = causal(scaled(q, k)).masked_fill(i - j >= 3, -torch.inf).softmax(-1)
    z = g[0] * (compressed @ mean_v) + g[1] * (selected @ v) + g[2] * (near @ v)
    return z, g[0] * compressed.repeat_interleave(BLOCK, -1) / BLOCK + g[1] * selected + g[2] * near


@variant(
    "Mixture of blocks (MoBA)", "Lu et al. 2025", "2502.13189", "softmax over the own block and the earlier one with the largest q_i·mean(K_b)",
    """
block, own = torch.arange(T // 3), i // 3
gate = (q @ blocks(k).mT).masked_fill(block >= own, -inf)
chosen = torch.zeros_like(gate).bool().scatter(-1, gate.argmax(-1, keepdim=True), True) & (block < own) | (block == own)
z, w = attend(q, k, v, mask=dense(chosen.repeat_interleave(3, -1)) & causal(), weights=True)
""",
)  # fmt: skip
def mixture_of_blocks(q, k, v):
    _, j = places(q)
    e, open_ = causal(scaled(q, k)), torch.zeros(BATCH, H, *[q.shape[-2]] * 2, dtype=torch.bool)
    for t in range(q.shape[-2]):
        own = t // BLOCK
        open_[..., t, own * BLOCK :] = True
        if own:
            means = k[..., : own * BLOCK, :].unflatten(-2, (own, BLOCK)).mean(-2)
            best = (means @ q[..., t, :, None]).squeeze(-1).argmax(-1, keepdim=True)
            open_[..., t, :] |= j // BLOCK == best
    return average(e.masked_fill(~open_, -torch.inf).softmax(-1), v)


@variant(
    "Forgetting (FoX)", "Lin et al. 2025", "2503.02130", "e_ij = q_i·k_j / √d + Σ_{l=j+1}^{i} log σ(f_l)",
    """
kept = F.logsigmoid(f).cumsum(-1)
energy = Modified(ScaledDot(), Bias(kept[..., :, None] - kept[..., None, :]))
z, w = attend(q, k, v, energy=energy, mask=causal(), weights=True)
""",
)  # fmt: skip
def forgetting(q, k, v, f):
    T = q.shape[-2]
    bias = torch.zeros(BATCH, H, T, T).to(q)
    for i in range(T):
        for j in range(i):
            bias[..., i, j] = F.logsigmoid(f[..., j + 1 : i + 1]).sum(-1)
    return average(causal(scaled(q, k) + bias).softmax(-1), v)


@variant(
    "Multi-token", "Golovneva et al. 2025", "2504.00927", "softmax(θ ∗ (QKᵀ / √d)), θ over 2 queries and 3 keys, hidden energies 0",
    """
e = F.pad((q @ k.mT / D**0.5).tril(), (1, 1, 1, 0))
e = F.conv2d(e, theta, groups=H)
z, w = attend(e, torch.eye(T).to(v), v, energy=Dot(), mask=causal(), weights=True)  # one-hot keys: e is kept
""",
    remark="Neighbouring energies mix, so they are kept. The convolution over heads is left out.",
)  # fmt: skip
def multi_token(q, k, v, theta):
    e, T = scaled(q, k).tril(), q.shape[-2]
    mixed = torch.zeros_like(e)
    for i in range(T):
        for j in range(T):
            for a in (0, 1):
                for b in (0, 1, 2):
                    if 0 <= i + a - 1 and 0 <= j + b - 1 < T:
                        mixed[..., i, j] += theta[:, 0, a, b] * e[..., i + a - 1, j + b - 1]
    return average(causal(mixed).softmax(-1), v)


@variant(
    "Softpick", "Zuhri, Fuadi & Aji 2025", "2504.20966", "w_ij = max(exp(e_ij) − 1, 0) / Σ_j |exp(e_ij) − 1|",
    "z, w = attend(q, k, v, normalize=Softpick(), mask=causal(), weights=True)",
)  # fmt: skip
def softpick(q, k, v):
    x = (scaled(q, k).exp() - 1).tril()
    return average(x.relu() / x.abs().sum(-1, keepdim=True), v)


@variant(
    "Gated", "Qiu et al. 2025", "2505.06708", "(softmax(QKᵀ / √d) V) ⊙ σ(x W_g)",
    """
z, w = attend(q, k, v, mask=causal(), weights=True)
z = z * gate.sigmoid()
""",
    remark="The gate is a number for each token and channel, after the weights; no weight has it.",
    usual=lambda q, k, v, gate: (F.scaled_dot_product_attention(q, k, v, is_causal=True) * gate.sigmoid(), None),
)  # fmt: skip
def gated(q, k, v, gate):
    w = causal(scaled(q, k)).softmax(-1)
    return (w @ v) * gate.sigmoid(), w


@variant(
    "Learned sink", "OpenAI 2025 (gpt-oss)", "2508.10925", "w_ij = exp(e_ij) / (exp(s_h) + Σ_j exp(e_ij))",
    "z, w = attend(q, k, v, normalize=Softmax(sink=sink), mask=causal(), weights=True)",
)  # fmt: skip
def learned_sink(q, k, v, sink):
    e = torch.cat([causal(scaled(q, k)), sink[:, None, None].expand(BATCH, H, q.shape[-2], 1)], -1)
    return average(e.softmax(-1)[..., :-1], v)


@variant(
    "Kimi delta (KDA)", "Kimi Team 2025", "2510.26692", "S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t v_tᵀ, z_t = S_tᵀ q_t",
    """
decay, k = alphas.log().cumsum(-2).exp(), F.normalize(k, dim=-1)
known = torch.linalg.inv(torch.eye(T) + (beta[..., None] * ((k * decay) @ (k / decay).mT)).tril(-1))
w = ((q * decay) @ (k / decay).mT).tril() @ known * beta[..., None, :]
z, w = attend(w, torch.eye(T).to(v), v, energy=Dot(), normalize=Unnormalized(), weights=True)
""",
    remark="A gated delta rule with a decay for each channel; as there, the implied matrix is formed.",
)  # fmt: skip
def kimi_delta(q, k, v, alphas, beta):
    k = F.normalize(k, dim=-1)

    def recurrence(values):
        state, outs = torch.zeros(BATCH, H, D, values.shape[-1]).to(q), []
        for t in range(q.shape[-2]):
            kept = alphas[..., t, :, None] * state
            b, key = beta[..., t, None, None], k[..., t, :, None]
            state = kept - b * key @ (key.mT @ kept) + b * key @ values[..., t, None, :]
            outs.append((q[..., t, None, :] @ state).squeeze(-2))
        return torch.stack(outs, -2)

    return recurrence(v), recurrence(torch.eye(q.shape[-2]).to(v).expand(BATCH, H, -1, -1))


def indexed(q_i, k_i, w_i):
    """The 4 keys of the largest index I_ts = Σ_h w_th relu(q_th·k_s), and which of them are seen."""
    index = torch.stack([(q_i[:, :, n] @ k_i.mT).relu() * w_i[:, :, n, None] for n in range(2)]).sum(0)
    index = causal(index)
    slots = index.topk(4).indices
    return slots, index.gather(-1, slots) > -torch.inf


def gathered(q, k, v, q_i, k_i, w_i):
    slots, seen = indexed(q_i, k_i, w_i)
    keys, values = (x[:, :, slots[0]] for x in (k, v))  # [B, H, T, 4, D]
    e = torch.einsum("bhtd,bhtsd->bhts", q, keys) / math.sqrt(D)
    w = e.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhts,bhtsd->bhtd", w, values), None


@variant(
    "Sparse by index (DSA)", "DeepSeek-AI 2025", "2512.02556", "softmax over the 4 keys of the largest I_ts = Σ_h w_th relu(q^I_th·k^I_s)",
    """
index = torch.einsum("bthd,bsd->bths", q_i, k_i).relu().mul(w_i[..., None]).sum(2)
slots = index.masked_fill(j > i, -inf).topk(4).indices  # [B, T, 4]: which token a slot holds
chosen = torch.zeros(1, T, T, dtype=torch.bool).scatter(-1, slots, True)
z, w = attend(q, k, v, mask=dense(chosen[:, None]) & causal(), weights=True)
""",
)  # fmt: skip
def sparse_by_index(q, k, v, q_i, k_i, w_i):
    slots, _ = indexed(q_i, k_i, w_i)
    chosen = torch.zeros(BATCH, *[q.shape[-2]] * 2, dtype=torch.bool).scatter(-1, slots, True)
    return average(causal(scaled(q, k)).masked_fill(~chosen[:, None], -torch.inf).softmax(-1), v)


@variant(
    "DSA, over slots", "DeepSeek-AI 2025", "2512.02556", "the same as kernels compute it: keys are gathered, and `slots` maps them to tokens",
    """
index = torch.einsum("bthd,bsd->bths", q_i, k_i).relu().mul(w_i[..., None]).sum(2)
slots = index.masked_fill(j > i, -inf).topk(4).indices
keys, values, seen = k[:, :, slots[0]], v[:, :, slots[0]], (slots[0] <= i)[:, None]
z, w = attend(q[..., None, :], keys, values, mask=seen, weights=True)  # [B, H, T, 1, 4]
z, w = z[..., 0, :], torch.zeros(1, H, T, T).to(v).scatter(-1, slots[:, None].expand(1, H, T, 4), w.dense()[..., 0, :])
""",
    usual=gathered,
)  # fmt: skip
def sparse_over_slots(q, k, v, q_i, k_i, w_i):
    return sparse_by_index(q, k, v, q_i, k_i, w_i)


class Usual(nn.Module):
    """A model that computes a variant as models do."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant

    def forward(self, **given: object) -> Tensor:
        return self.variant.usual(**given)[0]
