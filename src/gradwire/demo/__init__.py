"""The demo: one small language model, trained over one emulated slow network, again and again.

corpus   the text that ships with Python, as words     model    two-layer LSTM, about 20 M
rows     the contestants                               task     a row's settings and numbers
worker   one rank of one row                           runner   all rows on one cluster
summary  makes a table, a document and a plot of what was measured
"""
