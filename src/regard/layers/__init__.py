"""Parts made of the formula: multi-head attention, positions, Transformer blocks, attentive recurrent cells."""
