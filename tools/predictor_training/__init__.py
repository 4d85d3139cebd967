"""The recipe of the shipped predictor of routing, `specfit_runtime.demo_predictor`."""
