/** The rows of a turn that `explain.ts` reads. */
import type {
  AgentId,
  BoxId,
  Card,
  CardId,
  ErrorBody,
  JsonValue,
  Profile,
  ProfileId,
  ProjectId,
  RunId,
  Segment,
  StoredManifest,
  TapeEntry,
  TurnId,
  TurnStatus,
} from '@boxcar/kernel';
import type { ShownAs } from '../box/index.js';
import type { OfferedTool } from '../kinds/row-kinds.js';

/** A card with its bookkeeping. */
export interface StoredCard {
  readonly card: Card;
  readonly hash: string;
  readonly tokens: number;
  readonly createdAt: Date;
  readonly isErased: boolean;
}

export interface ExplainedTurn {
  readonly turnId: TurnId;
  readonly runId: RunId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly agentName: string;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly status: TurnStatus;
  readonly stepCount: number;
  readonly maxSteps: number;
  readonly deliverableCardId: CardId | null;
  /** The selector that makes the prompts; the version is null until its first step. */
  readonly selector: { readonly name: string; readonly version: string | null } | null;
  readonly profile: {
    readonly profileId: ProfileId;
    readonly name: string;
    readonly version: number;
    readonly boxId: BoxId;
    readonly content: Profile;
    readonly card: StoredCard;
  };
}

export interface StepRow {
  readonly step: number;
  readonly attempt: number;
  readonly fromPosition: number;
  readonly toPosition: number;
  /** The last anchor at or before `toPosition`; 0 on a tape without one. */
  readonly anchorPosition: number;
  readonly openedAt: Date;
  readonly committedAt: Date | null;
  readonly model: string | null;
  readonly promptHash: string | null;
  readonly toolsetHash: string | null;
  readonly manifest: StoredManifest | null;
  readonly usage: JsonValue;
  readonly error: ErrorBody | null;
}

/** The place of an entry, in addition to the data that a view reads. */
export interface StoredEntry {
  readonly entry: TapeEntry;
  readonly stored: StoredCard | null;
}

/** A card of a context box, and the tape entry from which it was taken, if any. */
export interface SourcedCard {
  readonly stored: StoredCard;
  readonly rule: Segment['rule'];
  readonly shownAs: ShownAs;
  /** Index in the box's segments, from 0. */
  readonly segment: number;
  /** The position in the leaf, the box that contains the card itself. */
  readonly position: number;
  readonly entry: {
    readonly kind: TapeEntry['kind'];
    readonly turnId: TurnId | null;
    readonly step: number | null;
  } | null;
}

/** A card that a token budget left out of a context box. */
export interface CutCard extends SourcedCard {
  readonly strategy: string;
  readonly reason: string;
}

/** A box on the way of a card. */
export interface BoxRow {
  readonly boxId: BoxId;
  readonly kind: 'context' | 'tape';
  readonly ownerAgentId: AgentId | null;
  readonly makerAgentId: AgentId | null;
  readonly segments: readonly Segment[];
}

/** The right by which an agent may read a box, according to the present rows. */
export interface BoxRight {
  readonly isOperator: boolean;
  readonly isOwner: boolean;
  readonly isMaker: boolean;
  /** The box belongs to the agent's own profile. */
  readonly isProfile: boolean;
  /** The agent launched the agent that has the box. */
  readonly isLauncher: boolean;
  /** Turns of the agent have requested ended turns that wrote to the box, or the agent was notified of their ends. */
  readonly isParent: boolean;
  readonly grant: {
    readonly source: string;
    readonly uptoPosition: number | null;
    readonly expiresAt: Date | null;
    readonly createdAt: Date;
  } | null;
}

export interface TurnRows {
  readonly turn: ExplainedTurn;
  readonly steps: readonly StepRow[];
  /** From the first position that a wanted step reads, up to the turn's own entries after the last wanted step. */
  readonly entries: readonly StoredEntry[];
  readonly contexts: ReadonlyMap<BoxId, readonly SourcedCard[]>;
  /** The cards that budgets left out of the contexts, by context. */
  readonly cuts: ReadonlyMap<BoxId, readonly CutCard[]>;
  /** The contexts, the boxes that their callers named, and the boxes that contain the cards. */
  readonly boxes: ReadonlyMap<BoxId, BoxRow>;
  /** Keyed by {@link rightKey}. */
  readonly rights: ReadonlyMap<string, BoxRight>;
  readonly agentNames: ReadonlyMap<string, string>;
  readonly toolsets: ReadonlyMap<string, readonly OfferedTool[]>;
}

/** Chooses the steps to examine from the rows of all steps. */
export type ChooseSteps = (turn: ExplainedTurn, steps: readonly StepRow[]) => readonly StepRow[];
