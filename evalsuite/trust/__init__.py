"""How far scores can be trusted: a judge's card, planning, abstention, boards corrected by people, forks, studies."""
