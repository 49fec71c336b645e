"""What each field and item of the three chat APIs is: a demand, a form or a preference.

A demand (tools, a schema, a picture, a window) is routed, adapted or refused. A form (a role, a name, an item's type)
is translated to what the server reads, and back. A preference (effort, cache key, tier) is mapped to what the server
knows, or left out: it never costs an answer. Types of tools and items that are not here are new: what is offered is
left out, and the client told so; what stands in the history becomes text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Asking = Literal["demand", "form", "preference"]
Table = Mapping[str, Asking]


def _table(*, demand: str = "", form: str = "", preference: str = "") -> Table:
    kinds: tuple[tuple[Asking, str], ...] = ("demand", demand), ("form", form), ("preference", preference)
    return MappingProxyType({name: kind for kind, names in kinds for name in names.split()})


CHAT_FIELDS = _table(
    demand="model messages tools tool_choice functions function_call response_format n logprobs top_logprobs stop audio"
    " modalities web_search_options stream logit_bias",
    form="max_tokens max_completion_tokens stream_options",
    preference="reasoning_effort reasoning thinking think enable_thinking thinking_budget verbosity prompt_cache_key"
    " prompt_cache_retention prompt_cache_options service_tier metadata store safety_identifier user moderation"
    " prediction parallel_tool_calls seed temperature top_p top_k min_p frequency_penalty presence_penalty"
    " repetition_penalty chat_template_kwargs extra_body include_reasoning reasoning_format separate_reasoning"
    " reasoning_split min_tokens cache_prompt timings_per_token return_progress",
)
MESSAGES_FIELDS = _table(
    demand="model messages system tools tool_choice stop_sequences stream mcp_servers container output_format thread"
    " compaction fallbacks",
    form="max_tokens betas",
    preference="metadata service_tier cache_control context_management inference_geo speed thinking output_config"
    " temperature top_p top_k billing_policy diagnostics fallback_credit_token user_profile_id workspace_id",
)
RESPONSES_FIELDS = _table(
    demand="model input instructions tools tool_choice text stream background conversation prompt previous_response_id"
    " top_logprobs include",
    form="max_output_tokens stream_options",
    preference="reasoning metadata service_tier safety_identifier client_metadata moderation max_tool_calls store"
    " prompt_cache_key prompt_cache_retention prompt_cache_options truncation parallel_tool_calls temperature top_p"
    " user context_management",
)
RESPONSES_ITEMS = _table(
    demand="message function_call function_call_output custom_tool_call custom_tool_call_output reasoning"
    " item_reference",
    form="local_shell_call local_shell_call_output shell_call shell_call_output apply_patch_call"
    " apply_patch_call_output web_search_call file_search_call code_interpreter_call computer_call"
    " computer_call_output image_generation_call mcp_call mcp_list_tools mcp_approval_request mcp_approval_response"
    " tool_search_call tool_search_output program program_output compaction",
    preference="additional_tools compaction_trigger",
)
"""A form is told as text; a preference asks for nothing now."""
RESPONSES_TOOLS = _table(
    demand="function custom namespace",
    preference="file_search computer computer_use_preview web_search web_search_2025_08_26 web_search_preview"
    " web_search_preview_2025_03_11 mcp code_interpreter programmatic_tool_calling image_generation local_shell shell"
    " tool_search apply_patch",
)
"""A preference is left out, and told, unless `tool_choice` demands it."""
MESSAGES_BLOCKS = _table(
    demand="text image document search_result thinking redacted_thinking tool_use tool_result tool_addition"
    " tool_removal",
    form="server_tool_use web_search_tool_result web_fetch_tool_result advisor_tool_result code_execution_tool_result"
    " bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_use"
    " mcp_tool_result mcp_tool_listing container_upload compaction fallback",
)

CHAT_PREFERENCES = frozenset(name for name, kind in CHAT_FIELDS.items() if kind == "preference")
