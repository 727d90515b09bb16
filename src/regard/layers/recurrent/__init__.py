"""Recurrent layers: GRU and LSTM cells, attention inside a loop, the LSTMN."""
