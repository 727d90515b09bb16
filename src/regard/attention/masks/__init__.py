"""Masks: which keys a query may see. True means it may.

    causal() & padding(lengths) | prefix(n)      ~documents(ids)      print(window(3))

A mask is a rule about indices. From the rule come the forms that kernels want: `is_causal` for SDPA, `mask_mod` for
FlexAttention, an interval of keys per query (`bounds`) for kernels that skip whole blocks, and the dense tensor.

Lengths, ids and centers are copied when a mask is made, so later changes do not reach it; a boolean matrix is too large
for that, and is held by reference.
"""
