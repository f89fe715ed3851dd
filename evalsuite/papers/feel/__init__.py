"""FEEL: its panel of judges, their ensemble, and how metrics rank supporters."""
