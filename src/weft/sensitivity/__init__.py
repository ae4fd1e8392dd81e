"""How much slower an application gets with less bandwidth: profiles, models, their table.

`fit_application` fits both models to a `Profile`; `AppTable` keeps applications; `estimate` reads
a model off the trace of a single run.
"""
