"""Secure aggregation as functions of bytes and arrays: keys, shares, masks and fixed-point numbers.

The protocol is SecAgg+ (Bell et al., CCS 2020, ePrint 2020/704); `docs/secure-aggregation.md` says what it hides.
"""
