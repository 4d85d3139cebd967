"""GLM-4-MoE: laid out as DeepSeek-V3, under the same names."""

from __future__ import annotations

from dataclasses import replace

from . import deepseek_v3

FAMILY = replace(deepseek_v3.FAMILY, name="glm4_moe")
