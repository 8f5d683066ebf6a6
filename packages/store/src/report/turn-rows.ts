/** What `explain.ts` reads of a turn. */
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
  /** What makes its prompts; the version is null until its first step. */
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

/** Where an entry stands besides what a view reads of it. */
export interface StoredEntry {
  readonly entry: TapeEntry;
  readonly stored: StoredCard | null;
}

/** A card of a context box, and the entry of the tape it was taken from when it was. */
export interface SourcedCard {
  readonly stored: StoredCard;
  readonly rule: Segment['rule'];
  readonly shownAs: ShownAs;
  /** Index in the box's segments, from 0. */
  readonly segment: number;
  /** In the leaf: the box that holds the card itself. */
  readonly position: number;
  readonly entry: {
    readonly kind: TapeEntry['kind'];
    readonly turnId: TurnId | null;
    readonly step: number | null;
  } | null;
}

/** A card that a token budget kept out of a context box. */
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

/** By what right an agent may read a box, as the rows stand now. */
export interface BoxRight {
  readonly isOperator: boolean;
  readonly isOwner: boolean;
  readonly isMaker: boolean;
  /** It is the box of the agent's own profile. */
  readonly isProfile: boolean;
  /** The agent launched the one whose box it is. */
  readonly isLauncher: boolean;
  /** Turns of the agent have asked for ended turns that wrote to it, or it was told of their ends. */
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
  /** From the first position that a wanted step reads; with the turn's own entries behind the last of them. */
  readonly entries: readonly StoredEntry[];
  readonly contexts: ReadonlyMap<BoxId, readonly SourcedCard[]>;
  /** What budgets kept out of the contexts, by context. */
  readonly cuts: ReadonlyMap<BoxId, readonly CutCard[]>;
  /** The contexts, the boxes their callers named, and the boxes that hold the cards. */
  readonly boxes: ReadonlyMap<BoxId, BoxRow>;
  /** By {@link rightKey}. */
  readonly rights: ReadonlyMap<string, BoxRight>;
  readonly agentNames: ReadonlyMap<string, string>;
  readonly toolsets: ReadonlyMap<string, readonly OfferedTool[]>;
}

/** Which steps are looked at: from the rows of all of them, those that count. */
export type ChooseSteps = (turn: ExplainedTurn, steps: readonly StepRow[]) => readonly StepRow[];
