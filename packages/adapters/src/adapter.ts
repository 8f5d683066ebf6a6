/**
 * The port of handoffs: the interface for handing a task to another platform. The runtime's native platform has an implementation too.
 *
 * H1  One call of `executeHandoff` is one attempt: an adapter never retries by itself.
 * H2  When the signal aborts, the call ends at once with the signal's reason and the connection is closed.
 * H3  Every packed card is either sent or lost, never both.
 * H4  A result, a part, an error or a loss report never contains an address, model or key of a target.
 * Rule: README.md, "Guarantees".
 */
import type { CardContent, JsonObject, JsonValue, Role } from '@boxcar/kernel';
import type { Target } from './targets/target.js';

/** The kinds of content that a platform may carry. A file whose content type is `image/…` is an image. */
export const CARRIED_KINDS = ['text', 'json', 'file', 'image', 'tool_call', 'tool_result'] as const;
export type CarriedKind = (typeof CARRIED_KINDS)[number];

/** The kinds and sizes of content that an adapter accepts. */
export interface AdapterCapabilities {
  /** The adapter emits parts of the result while the target writes it. */
  readonly streaming: boolean;
  /** The platform can be told to stop a task. */
  readonly cancel: boolean;
  /** The target can ask questions and receives the answers. */
  readonly messages: boolean;
  /** Null: not known. An entry of `targets` can set it. */
  readonly max_context_tokens: number | null;
  readonly carries: readonly CarriedKind[];
  /** The content types of files, except images, that the platform carries. Default: any. */
  readonly file_types?: readonly string[] | undefined;
}

/** A card as selected by the packer. */
export interface PackedCard {
  readonly id: string;
  readonly type: string;
  readonly role: Role | null;
  readonly content: CardContent;
}

/** A task for another platform: target, instruction and packed cards. */
export interface AdapterRequest {
  readonly handoff_id: string;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly task: string;
  readonly context: JsonObject;
  /** Null: none was given. */
  readonly payload: JsonValue;
  /** In the order of the package. */
  readonly cards: readonly PackedCard[];
  /** The resolved entry of `targets`. */
  readonly target: Target;
}

/** A part of an answer that arrived before its end. */
export interface ResultPart {
  readonly type: 'text';
  readonly text: string;
}

/** The task and the question that `ask` is called for. */
export interface AskedTask {
  /** The same id each time this question is asked, also in another attempt. */
  readonly questionId: string;
  /** The platform's id of the task that waits for the answer. */
  readonly remoteId: string;
}

/** The attempt that an adapter carries out: signal, reports of progress, and the task to continue. */
export interface ExecuteOptions {
  readonly signal: AbortSignal;
  /** From 1. */
  readonly attempt: number;
  /** The same for all attempts of a handoff. */
  readonly idempotencyKey: string;
  /** Receives the parts of a text result in order; the joined parts are the result. */
  readonly onPart?: ((part: ResultPart) => void) | undefined;
  /** Passes a question of the target to the source agent. Without it, a question fails the handoff. */
  readonly ask?: ((question: string, of: AskedTask) => Promise<string>) | undefined;
  /**
   * The task of an earlier attempt that asked a question and was interrupted: this attempt continues that task instead of starting one.
   */
  readonly resumeId?: string | undefined;
  /** Called as soon as the platform has given its task an id, which a later `cancel` needs. */
  readonly onRemoteId?: ((id: string) => void) | undefined;
}

/** The remote task to cancel. */
export interface CancelOptions {
  readonly signal: AbortSignal;
  /** The id that `onRemoteId` was called with. */
  readonly remoteId: string;
}

/** A card that was left out or changed, with the reason. */
export interface LostCard {
  readonly card_id: string;
  /** The kind of content, such as `file`. */
  readonly what: string;
  readonly why: string;
}

/** The cards that the platform did not get, or got in another form. */
export interface LossReport {
  readonly sent_cards: readonly string[];
  readonly lost: readonly LostCard[];
}

/** The tokens that the platform reports. */
export interface AdapterUsage {
  readonly input_tokens: number;
  readonly output_tokens: number;
}

/** The answer of a platform. */
export interface AdapterResult {
  readonly result: JsonValue;
  /** Null: the platform reported none. */
  readonly usage: AdapterUsage | null;
  /** The platform's id of the answer, the task or the session. */
  readonly remote_id: string | null;
  readonly loss: LossReport;
}

/** Carries out handoffs to one platform. A program registers its own with `AdapterRegistry`. */
export interface HandoffAdapter {
  /** The first name of its platform. */
  readonly platform: string;
  /** The most that the adapter can do; `capabilitiesOf` may restrict it. */
  readonly capabilities: AdapterCapabilities;
  /** `safe`: another attempt may follow an interrupted one, since a repeated request has no effect on the platform. */
  readonly retry: 'safe' | 'never';
  /** True: the adapter can continue a task by `resumeId`. Only an adapter that does, or whose `retry` is `safe`, receives `ask`. */
  readonly resumes?: boolean | undefined;
  /** True for each name of its platform, in upper or lower case. */
  supportsPlatform(name: string): boolean;
  /** The capabilities for this target. Default: `capabilities`. */
  capabilitiesOf?(target: Target): AdapterCapabilities;
  /**
   * Hands the task over and waits for the result.
   *
   * @throws AdapterError for a failure of the platform, KernelError for a request that is refused before any request is sent, and the
   * signal's reason after an abort.
   */
  executeHandoff(request: AdapterRequest, options: ExecuteOptions): Promise<AdapterResult>;
  /** Tells the platform to stop. @returns Whether the platform accepted the request. */
  cancel?(request: Pick<AdapterRequest, 'target'>, options: CancelOptions): Promise<boolean>;
}
