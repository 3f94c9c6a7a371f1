"""The demo: one small language model, trained over one emulated slow network, again and again.

corpus   the text that ships with Python, as words     model    two-layer LSTM, about 20 M
rows     who competes                                  task     what a rank is told and measures
worker   one rank of one row                           runner   all rows on one cluster
summary  from what was measured to a table, a document and a plot
"""
