"""Positions: where queries and keys stand, told to attention in one of three ways.

    x + SinusoidalPositions(d)(x)                   added to the vectors (`regard.layers`: sinusoidal, learned)
    Rotary(ScaledDot())                             queries and keys are rotated before they are compared
    Modified(ScaledDot(), Alibi(8))                 a number is added to each energy (ALiBi, T5's relative bias)

Each draws itself: `print(Rotary())`.
"""
