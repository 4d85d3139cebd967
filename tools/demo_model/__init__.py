"""The recipe of the model and drafter that ``specfit_runtime`` ships: every step is a command."""
