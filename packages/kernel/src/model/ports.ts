/** The ports of the kernel: the outside services that its rules need, each with more than one implementation. */
import type { ErrorBody, JsonValue, TurnId } from '../base/index.js';
import { maskSecrets } from '../base/index.js';
import type { Message, ProviderPart, ToolSchema } from '../card/index.js';

export interface ModelRequest {
  readonly messages: readonly Message[];
  readonly tools: readonly ToolSchema[];
  /** The profile's model name, for example `scripted` or `openai:<model>`. */
  readonly model: string;
  readonly settings: {
    readonly temperature?: number | undefined;
    readonly max_output_tokens?: number | undefined;
    /** False asks for the answer in one piece; otherwise adapters of real providers stream. */
    readonly stream?: boolean | undefined;
  };
  /** The profile's script; only scripted models read it. */
  readonly script?: readonly JsonValue[] | undefined;
  /** Identifies the call. A model keeps no state of its own, so that another worker can take over and continue. */
  readonly turn: {
    readonly turnId: TurnId;
    readonly step: number;
    readonly attempt: number;
    readonly epoch: number;
    /** Index in `messages` of the first message of this turn (its inherited context, then its arguments). */
    readonly firstMessage: number;
    /** Number of messages up to the end of this turn's inherited context, which the siblings of a fork share. */
    readonly sharedMessages?: number | undefined;
    /** This turn's own instruction: text, or the JSON that was given. Null when its context has no instruction. */
    readonly instruction: JsonValue;
  };
}

export interface ModelToolCall {
  /** The provider's id; it may repeat, and it may be empty. */
  readonly id: string;
  readonly name: string;
  /** The arguments as the model wrote them: JSON text, possibly broken. */
  readonly arguments: string;
}

export interface ModelUsage {
  /** All tokens of the prompt, cached parts included. */
  readonly inputTokens: number;
  /** All tokens of the answer, reasoning included. */
  readonly outputTokens: number;
  /** The part of `inputTokens` that the provider read from its prompt cache. */
  readonly cachedInputTokens?: number | undefined;
  /** The part of `inputTokens` that the provider wrote to its prompt cache. */
  readonly cacheWriteTokens?: number | undefined;
  /** The part of `outputTokens` that was reasoning. */
  readonly reasoningTokens?: number | undefined;
  /**
   * True when the provider reported no figures, or not all of them, and the missing figures were derived from the sent
   * and received text.
   */
  readonly isEstimated?: boolean | undefined;
}

export interface ModelReply {
  readonly text: string;
  /** The reasoning that the provider showed: kept for audit, never part of a prompt. */
  readonly reasoning?: string | undefined;
  /**
   * The provider's attachments, in the order of the answer. They are sent back to this model with the answer, and are
   * never displayed.
   */
  readonly providerParts?: readonly ProviderPart[] | undefined;
  readonly toolCalls: readonly ModelToolCall[];
  readonly usage: ModelUsage;
  /** Settings that were not sent as the profile states them, in the adapter's words. */
  readonly warnings?: readonly string[] | undefined;
  readonly finishReason: 'stop' | 'tool_calls' | 'length' | 'content_filter' | 'other';
}

/**
 * A problem with a tool of a profile that does not make the profile invalid: a part of the tool's schema is not sent to
 * the model, or no tool has this name.
 */
export interface ToolFinding {
  readonly tool: string;
  readonly message: string;
}

/** A setting of a profile that is not sent as written. */
export interface SettingFinding {
  readonly setting: 'temperature' | 'max_output_tokens';
  /** Null when the setting is left out. */
  readonly sent: number | null;
  /** States the value that is sent, and the reason. */
  readonly message: string;
}

/**
 * Content that an adapter sends although no message and no tool of the prompt holds it, or that it sends in another
 * form.
 */
export interface WireNote {
  /**
   * `placeholder_tool`: replaces a tool that the history used and the step does not offer. `filler`: text where the
   * provider requires some. `joined`: several messages sent as one. `cache_mark`: the end of the part of the prompt
   * that may be cached. `call_id`, `tool_name`: converted to the form that the provider accepts. `left_out`: an
   * attachment of another provider that is not sent to this one. `untold`: a part of a tool that this provider cannot
   * express.
   */
  readonly kind:
    | 'placeholder_tool'
    | 'filler'
    | 'joined'
    | 'cache_mark'
    | 'call_id'
    | 'tool_name'
    | 'left_out'
    | 'untold';
  readonly message: string;
  /** The messages that the note is about, counted from 1. */
  readonly messages?: readonly number[];
  readonly tool?: string;
  /** Text that is sent but is in no message and no tool. */
  readonly text?: string;
}

/** The selector of a profile that is not registered in this process. */
export interface SelectorFinding {
  readonly selector: string;
  readonly message: string;
}

export interface GenerateOptions {
  readonly signal: AbortSignal;
  /**
   * Receives the text of the answer in order while the model writes it. The joined parts equal the reply's text. Not
   * every model streams.
   */
  readonly onText?: ((text: string) => void) | undefined;
}

/** Asks a model once. Implementations never retry and never run tools. Failures are thrown as `ModelError`. */
export interface Model {
  generate(request: ModelRequest, options: GenerateOptions): Promise<ModelReply>;
  /** The token count of each text for this model, exact or estimated. Must not block the process. */
  countTokens?(texts: readonly string[], model: string): Promise<readonly number[]>;
  /**
   * Lists the parts of the tools' schemas that the model's provider cannot express; called when a profile is applied.
   * The tools are offered all the same.
   */
  checkTools?(model: string, tools: readonly ToolSchema[]): readonly ToolFinding[];
  /**
   * Lists the parts of a prompt that the adapter adds or sends in another form; null when the model is not known. Sends
   * no request to a provider and needs no key.
   */
  describeWire?(
    model: string,
    prompt: Pick<ModelRequest, 'messages' | 'tools'> & { readonly sharedMessages?: number | undefined },
  ): readonly WireNote[] | null;
  /**
   * Lists the settings that the adapter sends in another way; called when a profile is applied. Sends no request to a
   * provider and needs no key.
   */
  checkSettings?(model: string, settings: ModelRequest['settings']): Promise<readonly SettingFinding[]>;
  /**
   * Checks the parts of a profile that only the adapter knows (its model name, its script); called when the profile is
   * applied.
   */
  checkProfile?(profile: {
    readonly model: string;
    readonly script?: readonly JsonValue[] | undefined;
  }): void;
}

/** The catalogue codes that a failed model call can have. */
export type ModelErrorCode =
  | 'bad_config'
  | 'card_damaged'
  | 'chain_failed'
  | 'context_overflow'
  | 'model_failed'
  | 'model_rate_limited'
  | 'model_refused'
  | 'model_timeout'
  | 'model_unauthorized'
  | 'model_unavailable'
  | 'model_unknown'
  | 'script_mismatch';

/** A failed model call, classified by how the caller may react. None of its texts contains a secret. */
export class ModelError extends Error {
  override readonly name = 'ModelError';
  readonly code: ModelErrorCode;
  /** True when the same request can succeed later without being changed. */
  readonly canRetry: boolean;
  /** The delay that the provider asks for before the next try, counted from the answer. */
  readonly retryAfterMs: number | undefined;
  /** The usage of the call although it failed; undefined when it used nothing, or when the usage is not known. */
  readonly usage: ModelUsage | undefined;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(
    code: ModelErrorCode,
    message: string,
    options: {
      canRetry?: boolean;
      retryAfterMs?: number | undefined;
      usage?: ModelUsage | undefined;
      details?: Readonly<Record<string, unknown>>;
      cause?: unknown;
    } = {},
  ) {
    super(maskSecrets(message), 'cause' in options ? { cause: options.cause } : undefined);
    this.code = code;
    this.canRetry = options.canRetry ?? false;
    this.retryAfterMs = options.retryAfterMs;
    this.usage = options.usage;
    this.details = maskSecrets(options.details ?? {});
  }

  toJSON(): ErrorBody {
    return { code: this.code, message: this.message, details: this.details };
  }
}

/** One ring: this turn became `dispatched` at this epoch. */
export interface Ring {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly workerTarget: string;
  /**
   * A hint. The lowest priority is delivered first, equal priorities in order. Above 0, one step of priority is worth
   * one second: a ring passes an older ring only if its priority is lower by more steps than the seconds between them.
   * For a new turn, the priority is the number of running turns of its project, or 8 while other turns of the project
   * wait. Default 1, for turns that have begun.
   */
  readonly priority?: number;
}

/**
 * Tells workers that turns are ready. Best effort by contract: `ring` never throws and never takes longer than its
 * limit, because the rows hold the same information and the sweep reads them.
 */
export interface Doorbell {
  ring(rings: readonly Ring[]): Promise<void>;
  /**
   * Finds the rings that are in no state of the queue that leads to a delivery; `undefined` when this is not known.
   *
   * @param options.takenMs - A ring that a listener has held for longer counts as lost. The listener may be stopped,
   * which the queue notices only much later. The time counts from the first call of this process that found the ring
   * held. Default: no limit.
   */
  findLost(
    rings: readonly Ring[],
    options?: { readonly takenMs?: number },
  ): Promise<readonly Ring[] | undefined>;
  /**
   * Sets the priority of these rings to 0, after the rings that already have it. Does not change rings that are not
   * waiting or already have priority 0. Best effort, like `ring`.
   */
  raise(rings: readonly Ring[]): Promise<void>;
  /**
   * Wakes jobs at the queue door whose turn has ended. Returns the jobs that no longer exist. `undefined` means that
   * the queue did not answer and was not asked further: the next sweep finds these jobs again.
   */
  knock(jobIds: readonly string[]): Promise<readonly string[] | undefined>;
  /** Delivers rings to `handle` until the subscription is closed, at most `concurrency` at a time. */
  listen(options: {
    readonly workerTarget: string;
    readonly concurrency: number;
    /**
     * Called for each ring immediately before `handle`. False returns the ring to the queue at once, for other
     * listeners, and pauses the subscription. Default: always true.
     */
    readonly admit?: (ring: Ring) => boolean;
    /** Called when the queue has no further ring for this listener. */
    readonly onEmpty?: () => void;
    readonly handle: (ring: Ring) => Promise<void>;
    readonly onError: (error: unknown) => void;
  }): Promise<DoorbellSubscription>;
  close(): Promise<void>;
}

export interface DoorbellSubscription {
  /** Takes no new rings until `resume`; a ring that is already on its way may still arrive. */
  pause(): void;
  resume(): void;
  /** Stops taking new rings and waits for the rings in progress. */
  close(): Promise<void>;
}
