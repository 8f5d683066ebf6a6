/**
 * The port of handoffs: how a task is handed to another platform. The runtime's native platform has an implementation too.
 *
 * H1  One call of `executeHandoff` is one attempt: an adapter never tries again by itself.
 * H2  When the signal aborts, the call ends at once with the signal's reason and the connection is closed.
 * H3  Every packed card is either sent or lost, never both.
 * H4  No address, model or key of a target is in a result, a part, an error or a loss report.
 * Rule: README.md, "Guarantees".
 */
import type { CardContent, JsonObject, JsonValue, Role } from '@boxcar/kernel';
import type { Target } from './targets/target.js';

/** The kinds of content that a platform may carry. A file whose content type is `image/…` is an image. */
export const CARRIED_KINDS = ['text', 'json', 'file', 'image', 'tool_call', 'tool_result'] as const;
export type CarriedKind = (typeof CARRIED_KINDS)[number];

export interface AdapterCapabilities {
  /** It hands on parts of the result while the target writes it. */
  readonly streaming: boolean;
  /** The platform itself can be told to stop. */
  readonly cancel: boolean;
  /** The target can ask questions and gets the answers. */
  readonly messages: boolean;
  /** Null: not known; an entry of `targets` can set it. */
  readonly max_context_tokens: number | null;
  readonly carries: readonly CarriedKind[];
  /** The content types of files, images aside, that it carries. Default: any. */
  readonly file_types?: readonly string[] | undefined;
}

/** A card as the packer chose it. */
export interface PackedCard {
  readonly id: string;
  readonly type: string;
  readonly role: Role | null;
  readonly content: CardContent;
}

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

export interface ResultPart {
  readonly type: 'text';
  readonly text: string;
}

/** What a question belongs to. */
export interface AskedTask {
  /** The same whenever this question is asked, also by another attempt. */
  readonly questionId: string;
  /** What the platform calls the task that waits for the answer. */
  readonly remoteId: string;
}

export interface ExecuteOptions {
  readonly signal: AbortSignal;
  /** From 1. */
  readonly attempt: number;
  /** The same for all attempts of a handoff. */
  readonly idempotencyKey: string;
  /** Parts of a text result in order; joined they are the result. */
  readonly onPart?: ((part: ResultPart) => void) | undefined;
  /** Puts a question of the target to the source agent. Without it, a question fails the handoff. */
  readonly ask?: ((question: string, of: AskedTask) => Promise<string>) | undefined;
  /** The task of an earlier attempt, which has asked and was cut off: this attempt goes on with it, and begins none. */
  readonly resumeId?: string | undefined;
  /** Called as soon as the platform has named its task, for a later `cancel`. */
  readonly onRemoteId?: ((id: string) => void) | undefined;
}

export interface CancelOptions {
  readonly signal: AbortSignal;
  /** What `onRemoteId` was called with. */
  readonly remoteId: string;
}

export interface LostCard {
  readonly card_id: string;
  /** The kind of content, such as `file`. */
  readonly what: string;
  readonly why: string;
}

export interface LossReport {
  readonly sent_cards: readonly string[];
  readonly lost: readonly LostCard[];
}

export interface AdapterUsage {
  readonly input_tokens: number;
  readonly output_tokens: number;
}

export interface AdapterResult {
  readonly result: JsonValue;
  /** Null: the platform reported none. */
  readonly usage: AdapterUsage | null;
  /** What the platform calls the answer, the task or the session. */
  readonly remote_id: string | null;
  readonly loss: LossReport;
}

export interface HandoffAdapter {
  /** The first name of its platform. */
  readonly platform: string;
  /** What it can do at most; `capabilitiesOf` may take some of it back. */
  readonly capabilities: AdapterCapabilities;
  /** `safe`: an attempt that was cut off may be followed by another one, since asking twice has no effect on the platform. */
  readonly retry: 'safe' | 'never';
  /** True: it goes on with a task by `resumeId`. Only such an adapter, and one that is `safe`, is given `ask`. */
  readonly resumes?: boolean | undefined;
  /** True for each name of its platform, in any case. */
  supportsPlatform(name: string): boolean;
  /** What it can do with this target. Default: `capabilities`. */
  capabilitiesOf?(target: Target): AdapterCapabilities;
  /**
   * Hands the task over and waits for the result.
   *
   * @throws AdapterError for a failure of the platform, KernelError for a request that is refused before anything is sent, and the
   * signal's reason after an abort.
   */
  executeHandoff(request: AdapterRequest, options: ExecuteOptions): Promise<AdapterResult>;
  /** Tells the platform to stop. @returns Whether the platform took it. */
  cancel?(request: Pick<AdapterRequest, 'target'>, options: CancelOptions): Promise<boolean>;
}
