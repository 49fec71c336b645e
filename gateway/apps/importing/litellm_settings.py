"""LiteLLM's settings and their counterparts here: built in, solved in another way, or none.

`key -> (kind, message, hint)`. A key that is in no table has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.apps.importing.draft import Kind

Meaning = tuple[Kind, str, str | None]


def _built_in(message: str, hint: str | None = None) -> Meaning:
    return ("changed", message, hint)


def _none(message: str = "has no counterpart here", hint: str | None = None) -> Meaning:
    return ("left_out", message, hint)


_RETRIES = _built_in(
    "there is no count of retries: each step of an alias is tried once", "write more steps in aliases.*.use"
)
_TIMEOUT = _built_in(
    "silence is bounded by the size of the prompt, so that long prompts are not cut",
    "for a fixed limit write timeouts: {first_byte: 600s, idle: 120s} under the backend or in defaults",
)
_COOLDOWN = _built_in(
    "a backend that fails is left at once and comes back when checks prove that it works",
    "see defaults.health: fail_after, recover_after",
)
_RATE = _none(
    "backends have no rates: a 429 is waited out and the next step taken",
    "limit clients with clients.*.rpm and tpm, local servers with backends.*.slots",
)
_LOGGING = _none(
    "logs have one line per request and never a prompt", "metrics are on /metrics, usage in `gateway usage`"
)
_CACHE = _none("answers are not cached", "a session stays where its prefix is cached (balance: affinity)")
_REDIS = _none("one gateway needs no redis", "when several share one fleet: server.shared: redis://HOST:6379/0")
_DATABASE = _none("there is no database: keys and limits are in routes.yaml, usage in a file under server.data")
_PARALLEL = _none("nothing is limited over the whole gateway", "see backends.*.slots and clients.*.max_inflight")
_ALERTS = _none("where alerts go is not taken over", "write alerts: {webhook: URL}; Slack's webhooks are understood")
_NOTHING_NEEDED = "is built in"

DEPLOYMENT: Mapping[str, Meaning] = {
    "rpm": _RATE,
    "tpm": _RATE,
    "itpm": _RATE,
    "otpm": _RATE,
    "weight": _none("there are no weights: members of a step are balanced by load", "see aliases.*.balance"),
    "timeout": _TIMEOUT,
    "stream_timeout": _TIMEOUT,
    "max_retries": _RETRIES,
    "num_retries": _RETRIES,
    "cooldown_time": _COOLDOWN,
    "drop_params": _built_in(
        "only what an engine cannot take is left out", "for tools see aliases.*.on_unsupported: refuse, mend or strip"
    ),
    "tags": _none("requests are not routed by tags", "write an alias for each purpose"),
    "tag_regex": _none("requests are not routed by tags", "write an alias for each purpose"),
    "merge_reasoning_content_in_choices": _none(
        "thoughts stay in a field of their own", "see aliases.*.reasoning_field"
    ),
    "api_version": _built_in("goes to the SDK by its environment variable", "set AZURE_API_VERSION"),
    "aws_region_name": _built_in("the SDK reads it from the environment", "set AWS_REGION_NAME"),
    "aws_access_key_id": _built_in("the SDK reads it from the environment", "set AWS_ACCESS_KEY_ID"),
    "aws_secret_access_key": _built_in("the SDK reads it from the environment", "set AWS_SECRET_ACCESS_KEY"),
    "aws_session_token": _built_in("the SDK reads it from the environment", "set AWS_SESSION_TOKEN"),
    "vertex_project": _built_in("the SDK reads it from the environment", "set VERTEXAI_PROJECT"),
    "vertex_location": _built_in("the SDK reads it from the environment", "set VERTEXAI_LOCATION"),
    "vertex_credentials": _built_in("the SDK reads it from the environment", "set GOOGLE_APPLICATION_CREDENTIALS"),
    "extra_headers": _none("backends get no headers of their own", "put a proxy that adds them in between"),
    "headers": _none("backends get no headers of their own", "put a proxy that adds them in between"),
    "organization": _none("backends get no headers of their own", "use a key that belongs to the organization"),
    "mock_response": _none("nothing is made up", "`gateway demo` has simulated backends"),
    "use_in_pass_through": _none("unknown paths are never passed through"),
    "supports_system_message": _none("messages are not rewritten"),
    "system_prompt": _none("messages are not rewritten", "say it in the client's system message"),
}

INFO_ONLY = frozenset(
    (
        "id", "base_model", "description", "tier", "team_id", "team_public_model_name", "db_model", "created_at",
        "created_by", "updated_at", "updated_by", "access_groups", "metadata", "litellm_provider", "key", "version",
        "max_tokens", "max_output_tokens", "supports_response_schema", "supports_reasoning", "supports_tool_choice",
        "supports_parallel_function_calling", "supports_prompt_caching", "supports_system_messages",
        "supported_environments",
    )
)  # fmt: skip
"""Keys of `model_info` that describe and change nothing in how LiteLLM routes."""

ROUTER: Mapping[str, Meaning] = {
    "num_retries": _RETRIES,
    "max_retries": _RETRIES,
    "retry_policy": _RETRIES,
    "model_group_retry_policy": _RETRIES,
    "retry_after": _RETRIES,
    "max_fallbacks": _built_in("a chain is followed to its end"),
    "timeout": _TIMEOUT,
    "stream_timeout": _TIMEOUT,
    "allowed_fails": _COOLDOWN,
    "allowed_fails_policy": _COOLDOWN,
    "cooldown_time": _COOLDOWN,
    "disable_cooldowns": _COOLDOWN,
    "enable_pre_call_checks": _built_in("a prompt always goes only where it fits"),
    "optional_pre_call_checks": _built_in("sessions stay where their prefix is cached"),
    "enable_health_check_routing": _built_in(f"health checks: {_NOTHING_NEEDED}"),
    "routing_strategy_args": _none("balancing has nothing to set"),
    "redis_host": _REDIS,
    "redis_port": _REDIS,
    "redis_password": _REDIS,
    "redis_url": _REDIS,
    "redis_db": _REDIS,
    "cache_responses": _CACHE,
    "cache_kwargs": _CACHE,
    "content_policy_fallbacks": _none("a refusal of a cloud's filter is passed on to the client"),
    "default_max_parallel_requests": _none("each backend has slots of its own", "write slots under the backends"),
    "default_litellm_params": _none("there are no parameters for all", "write params under the aliases"),
    "enable_tag_filtering": _none("requests are not routed by tags", "write an alias for each purpose"),
    "provider_budget_config": _none("providers have no budget", "write budget: 5 USD/day under each cloud backend"),
    "routing_groups": _none("each alias has its own balance", "write balance under the aliases"),
    "set_verbose": _LOGGING,
    "debug_level": _LOGGING,
}

LITELLM: Mapping[str, Meaning] = {
    "num_retries": _RETRIES,
    "num_retries_per_request": _RETRIES,
    "request_timeout": _TIMEOUT,
    "allowed_fails": _COOLDOWN,
    "cooldown_time": _COOLDOWN,
    "drop_params": DEPLOYMENT["drop_params"],
    "additional_drop_params": DEPLOYMENT["drop_params"],
    "modify_params": _built_in("requests are changed only where an engine needs it, and x-gateway-adapted says so"),
    "add_function_to_prompt": _none(
        "tools are not written into prompts", "aliases.*.on_unsupported: mend has vLLM do it and mends the calls"
    ),
    "parse_tool_call_from_content": _built_in("calls that come as text are always mended"),
    "content_policy_fallbacks": ROUTER["content_policy_fallbacks"],
    "cache": _CACHE,
    "cache_params": _CACHE,
    "callbacks": _LOGGING,
    "success_callback": _LOGGING,
    "failure_callback": _LOGGING,
    "service_callback": _LOGGING,
    "callback_settings": _LOGGING,
    "set_verbose": _LOGGING,
    "json_logs": _LOGGING,
    "turn_off_message_logging": _built_in("prompts are never logged"),
    "redact_user_api_key_info": _built_in("keys are never logged"),
    "max_budget": _none("there is no budget over everything", "write budget under backends and clients"),
    "budget_duration": _none("there is no budget over everything", "write budget under backends and clients"),
    "max_parallel_requests": _PARALLEL,
    "guardrails": _none("content is not judged", "put a guard in front of the gateway"),
    "ssl_verify": _none("certificates are always checked", "give a local server an http:// URL"),
    "telemetry": _built_in("nothing is sent home"),
}

GENERAL: Mapping[str, Meaning] = {
    "database_url": _DATABASE,
    "database_connection_pool_limit": _DATABASE,
    "database_connection_timeout": _DATABASE,
    "store_model_in_db": _DATABASE,
    "store_prompts_in_spend_logs": _built_in("prompts are never kept"),
    "disable_spend_logs": _built_in("usage is kept without prompts"),
    "alerting": _ALERTS,
    "alert_types": _ALERTS,
    "alerting_args": _ALERTS,
    "alerting_threshold": _ALERTS,
    "background_health_checks": _built_in(f"health checks: {_NOTHING_NEEDED}"),
    "health_check_interval": _built_in(f"health checks: {_NOTHING_NEEDED}", "see defaults.health.every and canary"),
    "global_max_parallel_requests": _PARALLEL,
    "max_parallel_requests": _PARALLEL,
    "custom_auth": _none("keys are in routes.yaml", "write one client per key under clients"),
    "allow_user_auth": _none("keys are in routes.yaml", "write one client per key under clients"),
    "ui_access_mode": _none("the status page has no users"),
    "allowed_routes": _built_in("only inference paths are served, and nothing else is passed on"),
    "pass_through_endpoints": _none("unknown paths are never passed through"),
    "forward_client_headers_to_llm_api": _none("clients' headers stay here, keys above all"),
    "proxy_batch_write_at": _DATABASE,
    "salt_key": _DATABASE,
    "cancel_on_disconnect": _built_in("a client that leaves always cancels its request upstream"),
    "completion_model": _none("a request names its alias", "give an alias further names with also"),
}

TOP: Mapping[str, Meaning] = {
    "callback_settings": _LOGGING,
    "guardrails": LITELLM["guardrails"],
    "mcp_servers": _none("MCP servers are the client's business"),
    "mcp_tools": _none("MCP servers are the client's business"),
    "search_tools": _none("tools are the client's business"),
    "vector_store_registry": _none("tools are the client's business"),
    "assistant_settings": _none("the assistants API is not served"),
    "files_settings": _none("the files API is not served"),
    "finetune_settings": _none("the fine-tuning API is not served"),
}
