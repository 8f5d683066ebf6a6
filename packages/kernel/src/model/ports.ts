/** The ports of the kernel: what its rules need from outside, each with more than one implementation. */
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
    /** False asks for the answer in one piece; adapters of real providers stream otherwise. */
    readonly stream?: boolean | undefined;
  };
  /** The profile's script; only scripted models read it. */
  readonly script?: readonly JsonValue[] | undefined;
  /** Where in the world this call stands. A model keeps no state of its own, so that a takeover can continue. */
  readonly turn: {
    readonly turnId: TurnId;
    readonly step: number;
    readonly attempt: number;
    readonly epoch: number;
    /** Index in `messages` of the first message of this turn (its inherited context, then its arguments). */
    readonly firstMessage: number;
    /** How many messages there are up to the end of what this turn inherits, which the siblings of a fork share. */
    readonly sharedMessages?: number | undefined;
    /** This turn's own instruction: text, or the JSON it was given. Null when its context holds none. */
    readonly instruction: JsonValue;
  };
}

export interface ModelToolCall {
  /** The provider's id; may repeat, may be empty. */
  readonly id: string;
  readonly name: string;
  /** The arguments as the model wrote them: JSON text, possibly broken. */
  readonly arguments: string;
}

export interface ModelUsage {
  /** All of the prompt, cached parts included. */
  readonly inputTokens: number;
  /** All of the answer, reasoning included. */
  readonly outputTokens: number;
  /** The part of `inputTokens` that the provider read from its prompt cache. */
  readonly cachedInputTokens?: number | undefined;
  /** The part of `inputTokens` that the provider wrote to its prompt cache. */
  readonly cacheWriteTokens?: number | undefined;
  /** The part of `outputTokens` that was reasoning. */
  readonly reasoningTokens?: number | undefined;
  /** True when the provider named no figures, or not all, and these were derived from what was sent and received. */
  readonly isEstimated?: boolean | undefined;
}

export interface ModelReply {
  readonly text: string;
  /** What the provider showed of the model's reasoning: kept for audit, never part of a prompt. */
  readonly reasoning?: string | undefined;
  /** What the provider attached, in the order of the answer: goes back to this model with the answer, and is shown to nobody. */
  readonly providerParts?: readonly ProviderPart[] | undefined;
  readonly toolCalls: readonly ModelToolCall[];
  readonly usage: ModelUsage;
  /** Settings that were not sent as the profile says, in the adapter's words. */
  readonly warnings?: readonly string[] | undefined;
  readonly finishReason: 'stop' | 'tool_calls' | 'length' | 'content_filter' | 'other';
}

/** What is wrong with a tool of a profile without making the profile wrong: a part of its schema is not told to the model, or nothing has its name. */
export interface ToolFinding {
  readonly tool: string;
  readonly message: string;
}

/** A setting of a profile that is not sent as it is written. */
export interface SettingFinding {
  readonly setting: 'temperature' | 'max_output_tokens';
  /** Null: the setting is left out. */
  readonly sent: number | null;
  /** With what is sent and why. */
  readonly message: string;
}

/** What an adapter sends that is in no message and no tool of a prompt, or is sent in another form than it has there. */
export interface WireNote {
  /**
   * `placeholder_tool`: stands for a tool that the history used and the step does not offer. `filler`: words where the provider wants some.
   * `joined`: messages sent as one. `cache_mark`: how far the prompt may be cached. `call_id`, `tool_name`: the form that the provider takes.
   * `left_out`: what a provider had attached and this one is not sent. `untold`: what of a tool this provider cannot be told.
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
  /** The messages that it is about, from 1. */
  readonly messages?: readonly number[];
  readonly tool?: string;
  /** Words that are sent and are in no message and no tool. */
  readonly text?: string;
}

/** The selector of a profile, which nothing here has registered. */
export interface SelectorFinding {
  readonly selector: string;
  readonly message: string;
}

export interface GenerateOptions {
  readonly signal: AbortSignal;
  /** Gets the text of the answer while it is written, in order. The parts joined are the reply's text. Not every model streams. */
  readonly onText?: ((text: string) => void) | undefined;
}

/** Asks a model once. Implementations never retry and never run tools. Failures are thrown as `ModelError`. */
export interface Model {
  generate(request: ModelRequest, options: GenerateOptions): Promise<ModelReply>;
  /** The tokens of each text for this model, exact or estimated. Must not hold up the process. */
  countTokens?(texts: readonly string[], model: string): Promise<readonly number[]>;
  /** What of the tools' schemas the model's provider cannot be told, when a profile is applied. The tools are offered all the same. */
  checkTools?(model: string, tools: readonly ToolSchema[]): readonly ToolFinding[];
  /** What of a prompt the adapter sends in another form, and what it adds; null where the model is not known. Asks no provider and needs no key. */
  describeWire?(
    model: string,
    prompt: Pick<ModelRequest, 'messages' | 'tools'> & { readonly sharedMessages?: number | undefined },
  ): readonly WireNote[] | null;
  /** Which of these settings the adapter sends in another way, when a profile is applied. Asks no provider and needs no key. */
  checkSettings?(model: string, settings: ModelRequest['settings']): Promise<readonly SettingFinding[]>;
  /** Checks what only the adapter knows about a profile (its model name, its script) when the profile is applied. */
  checkProfile?(profile: {
    readonly model: string;
    readonly script?: readonly JsonValue[] | undefined;
  }): void;
}

/** The codes of the catalogue that a model call can end with. */
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

/** A failed model call, typed by what the caller may do about it. No text of it holds a secret. */
export class ModelError extends Error {
  override readonly name = 'ModelError';
  readonly code: ModelErrorCode;
  /** True when the same request can succeed later without being changed. */
  readonly canRetry: boolean;
  /** How long the provider asks to wait first, counted from the answer. */
  readonly retryAfterMs: number | undefined;
  /** What the call has used although it failed; undefined: nothing, or nobody knows. */
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
   * A hint. The lowest priority is delivered first, equal priorities in order. Above 0 one step of priority is worth one second: a
   * ring passes an older ring only if it is lower by more steps than the seconds between them. For a new turn it is the number of
   * turns of its project that already run, or 8 while others of the project wait. Default 1, for turns that have begun.
   */
  readonly priority?: number;
}

/**
 * Tells workers that turns are ready. Best effort by contract: `ring` never throws and never takes longer than its
 * limit, because the rows say everything again and the sweep reads them.
 */
export interface Doorbell {
  ring(rings: readonly Ring[]): Promise<void>;
  /**
   * Finds the rings that are in no state of the queue that leads to a delivery; `undefined` = not known.
   *
   * @param options.takenMs - A ring that a listener has held for longer counts as lost: the listener may be stopped, which the queue
   * notices only much later. The time counts from the first call of this process that found the ring held. Default: no limit.
   */
  findLost(
    rings: readonly Ring[],
    options?: { readonly takenMs?: number },
  ): Promise<readonly Ring[] | undefined>;
  /**
   * Gives these rings priority 0, after the rings that already have it. Does not change rings that do not wait, or already have
   * priority 0. Best effort, like `ring`.
   */
  raise(rings: readonly Ring[]): Promise<void>;
  /**
   * Wakes jobs at the queue door whose turn has ended; those that are no longer there are returned. `undefined` = the queue did
   * not answer, and was asked no more: the next sweep finds these jobs again.
   */
  knock(jobIds: readonly string[]): Promise<readonly string[] | undefined>;
  /** Delivers rings to `handle` until the subscription is closed; at most `concurrency` at a time. */
  listen(options: {
    readonly workerTarget: string;
    readonly concurrency: number;
    /**
     * Called for each ring immediately before `handle`. False: the ring returns to the queue at once, for other listeners, and the
     * subscription is paused. Default: always true.
     */
    readonly admit?: (ring: Ring) => boolean;
    /** The queue had no further ring for this listener. */
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
  /** Stops taking new rings and waits for those in hand. */
  close(): Promise<void>;
}
