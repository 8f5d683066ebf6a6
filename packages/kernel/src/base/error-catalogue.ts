/**
 * The error catalogue: every code that a caller can receive, with its meaning, its HTTP status, whether a retry can
 * help, and the next step. Codes are never reused. `docs/reference/errors.md` lists the same codes; a test keeps the
 * two equal.
 */

export interface ErrorEntry {
  readonly message: string;
  readonly httpStatus: number;
  /** True when the same call can succeed later without being changed. */
  readonly canRetry: boolean;
  readonly next: string;
  /** True when `next` refers to the details: texts for people then print the details with the error. */
  readonly namesDetails: boolean;
}

const entry = (httpStatus: number, canRetry: boolean, message: string, next: string): ErrorEntry => ({
  message,
  httpStatus,
  canRetry,
  next,
  namesDetails: false,
});

/** An entry whose next step refers to the details. */
const detailed = (...of: Parameters<typeof entry>): ErrorEntry => ({ ...entry(...of), namesDetails: true });

export const ERROR_CATALOGUE = {
  bad_request: entry(400, false, 'The input is not valid.', 'Correct the named field and send it again.'),
  unknown_primitive: entry(
    400,
    false,
    'No primitive of this name is registered.',
    'Use a listed name, or register a handler or load its plugin.',
  ),
  not_found: entry(
    404,
    false,
    'A named thing does not exist in this project.',
    'Check the name or id and the project.',
  ),
  box_not_authorized: entry(
    403,
    false,
    'The source agent may not use this box.',
    'Grant the box with grantBox, or name a box that the agent owns.',
  ),
  delegation_denied: entry(
    403,
    false,
    'The caller may not give turns to this target.',
    "Add the profile to the caller's target_profiles, with one of its target_tags, if any. Share an existing agent.",
  ),
  permission_denied: entry(
    403,
    false,
    'A policy or a person does not allow this.',
    'Look at the decision: boxcar approvals show, boxcar policy explain.',
  ),
  unauthorized: entry(
    401,
    false,
    'The request has no API key, or its key is not valid here.',
    'Send the header authorization: Bearer <key>; boxcar keys create makes a key.',
  ),
  origin_denied: entry(
    403,
    false,
    'The server does not answer this host name or this web page.',
    'Use an address that the server is bound to, or start it with --allow-host or --allow-origin.',
  ),
  method_not_allowed: entry(
    405,
    false,
    'This address does not have this method.',
    'Use one of the methods that the header allow lists.',
  ),
  server_unavailable: entry(
    503,
    true,
    'The HTTP server of Boxcar cannot be reached, or its answer cannot be read.',
    'Check the address, and that boxcar serve runs there.',
  ),
  feature_disabled: entry(
    503,
    false,
    'This feature is switched off.',
    'Set the variable that the message or the manual names, and restart the process.',
  ),
  approval_resolved: entry(
    409,
    false,
    'The approval ticket has been decided already.',
    'Look at the decision: boxcar approvals show.',
  ),
  delegation_cycle: entry(
    409,
    false,
    'The target already waits for the caller.',
    'Delegate to another agent, or do not wait.',
  ),
  depth_exceeded: entry(
    409,
    false,
    'The tree of turns is too deep.',
    'Raise the project limit max_depth, or flatten the delegation.',
  ),
  payload_too_large: detailed(
    413,
    false,
    'A part of the input is larger than its limit.',
    'Shorten it, or raise the limit named in the details.',
  ),
  context_budget_exceeded: entry(
    413,
    false,
    'The context does not fit its token budget.',
    'Raise budget_tokens, name fewer boxes, or choose another budget_strategy.',
  ),
  packing_strategy_failed: detailed(
    500,
    false,
    'A packing strategy made no valid choice.',
    'Correct the registered function; the details say what was wrong with its choice.',
  ),
  selector_failed: detailed(
    500,
    false,
    'A selector made no valid prompt.',
    'Correct the registered function and register it as a new version; the details say what was wrong.',
  ),
  selector_unknown: entry(
    404,
    false,
    'This selector is not registered here, or not in this version.',
    'Register this name and version (registerSelector), for example by boxcar worker --plugin <file>.',
  ),
  idempotency_conflict: entry(
    409,
    false,
    'This idempotency key was used with other arguments.',
    'Use a new key for a new request.',
  ),
  conflict: entry(409, true, 'The row changed meanwhile.', 'Read the current state and decide again.'),
  project_archived: entry(
    409,
    false,
    'The project is archived and takes no new submissions.',
    'Submit to another project, or undo the archiving: boxcar projects archive <project> --undo.',
  ),
  turn_ended: entry(
    409,
    false,
    'The calling turn has already ended or is held by another worker.',
    'Nothing was done; start a new turn.',
  ),
  turn_not_authorized: entry(
    403,
    false,
    'The caller may not act on this turn.',
    'An agent can act on descendants of its own turns. The operator of the project can act on the others.',
  ),
  canceled: entry(
    409,
    false,
    'The turn was canceled.',
    'Its deliverable shows its progress. Submit it again if the work is still needed.',
  ),
  profile_invalid: entry(
    400,
    false,
    'The profile is not valid.',
    'Correct the named field and apply it again.',
  ),
  policy_invalid: entry(
    400,
    false,
    'The policy is not valid.',
    'Correct the listed places; boxcar policy check lists them all.',
  ),
  agent_exists: entry(
    409,
    false,
    'An agent of this name exists already.',
    'Choose another name, or use action ensure to get the existing one.',
  ),
  profile_mismatch: entry(
    409,
    false,
    'The agent has another profile.',
    "Name the agent's own profile, or derive a new agent with the other profile.",
  ),
  immutable: entry(
    409,
    false,
    'Cards, context boxes and tape entries never change.',
    'Write a new card or box instead.',
  ),
  tape_conflict: detailed(
    409,
    true,
    'The tape was changed or reset meanwhile.',
    'Read the tape after the head in the details, and decide again.',
  ),
  tape_busy: entry(
    409,
    true,
    'A turn of the agent that owns this tape is active or queued.',
    'Wait for its end, or cancel it.',
  ),
  fork_closed: entry(
    409,
    false,
    'The fork was merged or discarded.',
    'Append to the original tape, or fork it again.',
  ),
  issuer_unavailable: entry(
    503,
    true,
    'The issuer of tokens cannot be reached, or its answer cannot be used.',
    'Try again later; check BOXCAR_OAUTH_ISSUER and that the issuer answers.',
  ),
  database_unavailable: entry(
    503,
    true,
    'Postgres cannot be reached.',
    'Check DATABASE_URL and that the server runs; the call can be repeated with the same key.',
  ),
  database_in_use: entry(
    409,
    true,
    'Another process uses the embedded Postgres.',
    'Stop the other boxcar processes of this account and try again.',
  ),
  database_auth_failed: entry(
    503,
    false,
    'Postgres refused the user, the password or the database.',
    'Correct user, password and database name in DATABASE_URL.',
  ),
  database_forbidden: entry(
    403,
    false,
    'The role of this connection may not do that.',
    'Run it as the role that migrates, or grant the right to this one (docs/reference/operations.md).',
  ),
  redis_unavailable: entry(
    503,
    true,
    'Redis cannot be reached.',
    'Check REDIS_URL and that the server runs, or unset it to keep the queues in Postgres.',
  ),
  schema_outdated: entry(
    503,
    false,
    'The database schema is older than this program.',
    'Run `boxcar migrate`.',
  ),
  schema_too_new: entry(
    503,
    false,
    'The database schema is too new for this program.',
    'Upgrade Boxcar on this machine. For a development database: `boxcar dev --reset`, or another `BOXCAR_DATA_DIR`.',
  ),
  unsupported_format: entry(
    503,
    false,
    'A newer build has written some rows of the turn.',
    'Start workers of the newer build; this worker hands the turn over to them.',
  ),
  migration_failed: entry(
    500,
    false,
    'A migration could not be applied.',
    'Read the cause; the failed migration has changed nothing.',
  ),
  port_in_use: entry(503, false, 'The port is taken.', 'Stop the other program or choose another port.'),
  bad_config: entry(500, false, 'The configuration is not valid.', 'Correct the listed settings.'),
  output_failed: entry(
    500,
    false,
    'The output could not be written.',
    'Free space at the destination, or write to another place. The effects of the command remain.',
  ),
  plugin_failed: entry(
    500,
    false,
    'A plugin could not be loaded.',
    'Check its path and that its default export is a function of the runtime.',
  ),
  model_unknown: entry(
    400,
    false,
    'No adapter serves this model name, or its provider does not have the model.',
    'Use a known prefix such as `scripted` or `openai`, and a model that the provider offers.',
  ),
  model_failed: detailed(502, false, 'The model call failed.', "Read the provider's message in the details."),
  model_unauthorized: detailed(
    502,
    false,
    'The provider refuses the key: missing, wrong, without the right or credit.',
    'Set the variable named in the details where the workers run, then submit again.',
  ),
  model_rate_limited: entry(
    503,
    true,
    'The provider limits the rate of calls.',
    'Try again later, lower the concurrency of the workers, or have the limit raised.',
  ),
  model_unavailable: entry(
    503,
    true,
    'The provider cannot be reached, or its answer was cut off.',
    "Check the base URL and the provider's status, then submit again.",
  ),
  model_refused: entry(
    502,
    false,
    'The model refused to answer, or the content filter of the provider stopped the call.',
    'Change the instruction or the context, or use another model.',
  ),
  model_timeout: entry(
    504,
    true,
    'The model did not answer in time.',
    'Raise limits.model_timeout_seconds of the profile, or BOXCAR_MODEL_IDLE_SECONDS when its stream fell silent.',
  ),
  script_mismatch: detailed(
    500,
    false,
    'The script of the scripted model does not cover this prompt.',
    'Correct the step named in the details.',
  ),
  context_overflow: entry(
    413,
    false,
    "The prompt exceeds the model's context window.",
    'Pack less context, or hand off before this point.',
  ),
  invalid_reply: entry(
    502,
    false,
    'The model gave too many unusable answers.',
    'Check the model and the instructions of the profile.',
  ),
  tool_unknown: entry(404, false, 'No tool of this name exists.', 'Use one of the listed tools.'),
  tool_not_allowed: entry(
    403,
    false,
    "The tool is not in the profile's allow-list.",
    'Use one of the listed tools, or add it to `tools` of the profile.',
  ),
  tool_arguments_invalid: entry(
    400,
    false,
    "The arguments do not fit the tool's schema.",
    'Correct the named fields and call again.',
  ),
  tool_failed: entry(
    500,
    false,
    'The tool failed.',
    'Read its message; change the arguments or continue without it.',
  ),
  tool_crashed: entry(
    500,
    false,
    'The tool caused an error that no code caught.',
    'Make the tool await or catch the work that it starts; check the effect before you call it again.',
  ),
  tool_timeout: entry(
    504,
    false,
    'The tool did not answer before its deadline.',
    'Try a smaller request, or continue without it.',
  ),
  tool_server_unavailable: entry(
    503,
    true,
    'The MCP server of the tool cannot be reached.',
    'Continue without it, or call again later.',
  ),
  tool_not_queued: entry(
    409,
    false,
    'The call is not one that a tool worker answers.',
    'Answer with the tool_call_id of a job of your own queue.',
  ),
  chain_failed: detailed(
    502,
    false,
    'A hop of the chain failed.',
    'Look at details.phase; boxcar handoffs show lists the hops that were not compensated.',
  ),
  question_expired: entry(
    504,
    false,
    'No reply to the question came in time.',
    'Ask again, or continue without the reply.',
  ),
  question_closed: entry(
    409,
    false,
    'This question takes no reply.',
    'Look at boxcar handoffs messages: the question was answered, its time is over, or no call waits for the reply any more.',
  ),
  outcome_unknown: entry(
    500,
    false,
    'The tool was interrupted, and its effect is unknown.',
    'Check the effect before calling it again.',
  ),
  wait_timeout: entry(
    504,
    false,
    'The awaited turn did not end before the deadline of the wait.',
    'Continue without it, or ask again with a longer deadline_seconds.',
  ),
  handler_timeout: entry(
    504,
    false,
    'The handler of the primitive did not answer before its deadline.',
    'Nothing was written. Make it do less, or raise handlerTimeoutMs (BOXCAR_HANDLER_TIMEOUT_MS).',
  ),
  nested_connection: entry(
    500,
    false,
    'A handler asked for a second connection while its transaction is open.',
    "Use the handler's tools or pass its tx; call the runtime before the first statement on tx.",
  ),
  transaction_idle: entry(
    500,
    false,
    "The server ended a handler's transaction that waited too long between statements.",
    'Nothing was written. Call services before the first statement on tx, or in a tool.',
  ),
  answer_cut: entry(
    409,
    false,
    'The answer of the model was cut off.',
    'The deliverable has the text up to that point. Raise model_settings.max_output_tokens, or ask for less at once.',
  ),
  step_limit: entry(
    409,
    false,
    'The turn used all its steps.',
    'Raise limits.max_steps of the profile, or give a smaller instruction.',
  ),
  deadline_exceeded: entry(
    504,
    false,
    'The turn did not end before its deadline.',
    'Give a longer deadline_seconds or a smaller instruction.',
  ),
  budget_exceeded: entry(
    409,
    false,
    'A budget is used up.',
    'Raise it with `boxcar budget raise`, give a larger budget, or ask for less.',
  ),
  price_unknown: entry(
    409,
    false,
    'A cost is limited, and the model has no price.',
    'Set a price with `boxcar prices set <model>`, or declare the model free with --free.',
  ),
  end_refused: entry(
    409,
    false,
    'The turn may not end yet.',
    'Make the call that the message names, then end the turn again.',
  ),
  loop_detected: entry(
    409,
    false,
    'The call was made before with the same arguments, and nothing has changed since.',
    'Use other arguments or the earlier result. Declare a polled tool as `repeatable`.',
  ),
  fan_out_exceeded: entry(
    409,
    false,
    'The primitive would make too many turns at once.',
    'Raise the project limit max_fan_out, or split the tasks.',
  ),
  batch_closed: entry(
    409,
    false,
    'The turn was ended because its batch no longer waits for it.',
    'No action is needed; start it again by itself if you need its result.',
  ),
  not_ended: entry(
    500,
    false,
    'The end of the awaited turn or batch cannot be written, and the sweep has given it up.',
    'Correct the cause in the message, then run boxcar doctor --retry-dead.',
  ),
  worker_blocked: entry(
    500,
    false,
    'A tool blocked the event loop of its worker.',
    'Do long work in parts, in a separate process (isolate) or in a tool worker.',
  ),
  worker_crashed: entry(
    500,
    true,
    'The worker ended because of an error that no code caught.',
    'Read the message and the log of the worker: the cause is most likely a plugin. Correct it and submit again.',
  ),
  attempts_exhausted: entry(
    500,
    false,
    'The turn lost its worker too often.',
    'Look for what kills the workers (memory, a crashing tool), then submit again.',
  ),
  target_unknown: entry(
    404,
    false,
    'The platform does not have this model, app or agent.',
    'Correct the entry of the target in BOXCAR_TARGETS_FILE.',
  ),
  cards_not_carried: entry(
    400,
    false,
    'The platform cannot transport any of the packed cards.',
    'Pack cards of a supported kind, or hand the task over without cards.',
  ),
  platform_unavailable: entry(
    503,
    true,
    'The platform cannot be reached, or its answer was cut off.',
    'Try again later; check the entry of the target and the status of the platform.',
  ),
  platform_rate_limited: entry(
    503,
    true,
    'The platform limits the rate of requests.',
    'Try again later, or have the limit raised.',
  ),
  platform_unauthorized: detailed(
    502,
    false,
    'The platform refuses the key: missing, wrong, without the right or credit.',
    'Set the variable named in the details where the handoff runs, then hand off again.',
  ),
  platform_refused: entry(
    502,
    false,
    'The agent or the content filter of the platform refused the task.',
    'Change the task or its context, or hand it to another target.',
  ),
  platform_failed: entry(
    502,
    false,
    'The platform did not complete the handoff.',
    'Read the message of the platform, and correct the task or the entry of the target.',
  ),
  handoff_timeout: entry(
    504,
    false,
    'The handoff did not end in time.',
    'Give a longer timeout or a smaller task.',
  ),
  card_damaged: detailed(
    500,
    false,
    'A card of the turn cannot be read.',
    'Submit the task again without the card that the details name.',
  ),
  internal_error: detailed(
    500,
    false,
    'An unexpected failure inside the kernel.',
    'Report it with the ids in the details.',
  ),
} as const satisfies Record<string, ErrorEntry>;

export type ErrorCode = keyof typeof ERROR_CATALOGUE;
