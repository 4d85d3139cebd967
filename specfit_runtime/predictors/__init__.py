"""The routing predictors: one file each, and an entry here."""
