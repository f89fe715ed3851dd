"""FEEL: its panel of judges, the ensemble of them, and how metrics rank supporters."""
