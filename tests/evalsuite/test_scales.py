"""Dimensions with scales of their own, and rubrics that leave out texts of levels: asked, read, averaged, shown or refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openpyxl import load_workbook
from pydantic import ValidationError

from data_prep.judge_prompts import judge_messages
from data_prep.ledger import Step
from data_prep.prompts import load_pack
from data_prep.records import Dialogue, HumanScore, Judgement, RoleCard
from data_prep.rubrics import Rubric
from data_prep.scores import annotation
from data_prep.scores.human import check_scale
from data_prep.scores.rank_sft import cases
from evalsuite.checks.injections import load_injections
from evalsuite.checks.probe import probes
from evalsuite.judge import Judge
from evalsuite.judge_bands import answer_regex as bands_regex
from evalsuite.judge_bands import check_labels, read_bands
from evalsuite.judge_json import answer_regex, read_answer
from evalsuite.report.charts import distribution_charts, gold_charts
from evalsuite.report.transcripts import browse_data
from evalsuite.role_play.seekers import role_play_tables
from evalsuite.statistics.correlation import correlations
from evalsuite.statistics.judges import POOLED, confusion, confusion_tables
from evalsuite.statistics.leaderboard import leaderboard, scores
from evalsuite.statistics.summary import checked, distributions
from serve.client import ChatClient, Reply
from serve.errors import UserError
from serve.specs import Endpoint as SpecEndpoint
from serve.specs import ModelSpec, Sampling
from serve.store import Store
from tests.evalsuite.records import fed_rubric, make_dialogue, make_judgement, make_rubric

FED = fed_rubric()
TOPS = {"lively": 2, "consistent": 1, "overall": 4}
