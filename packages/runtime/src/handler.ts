import type {
  AgentId,
  BoxId,
  DelegationPolicy,
  DelegationTarget,
  JsonValue,
  ProjectId,
  RunId,
  TurnId,
} from '@boxcar/kernel';
import type { AgentRow, ChainLink, ProfileRow, Queryable, Tx } from '@boxcar/store';
import type { z } from 'zod';
import type { HandoverPacker } from './packer.js';

/** The caller of a primitive. */
export interface CallerContext {
  readonly projectId: ProjectId;
  readonly primitive: string;
  readonly source: {
    readonly agentId: AgentId;
    readonly isOperator: boolean;
    readonly policy: DelegationPolicy | undefined;
  };
  readonly channelId: string;
  readonly traceparent: string | null;
  /** The turn that calls, when the caller is an agent at work. */
  readonly parent:
    | {
        readonly turnId: TurnId;
        readonly runId: RunId;
        readonly agentId: AgentId;
        readonly depth: number;
        readonly contextBoxId: BoxId;
        readonly outputBoxId: BoxId;
        /** From the calling turn to the root. */
        readonly chain: readonly ChainLink[];
      }
    | undefined;
}

/** A turn that this primitive makes; it exists once the primitive's transaction commits. */
export interface TurnRef {
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
}

export interface SubmitTurnRequest {
  /** A fresh agent of a profile, or an existing agent. */
  readonly target:
    | { readonly kind: 'new'; readonly profile: ProfileRow; readonly derivedFrom?: AgentId }
    | { readonly kind: 'reuse'; readonly agent: AgentRow };
  /** A sealed box made by `packer`. */
  readonly contextBoxId: BoxId;
  /** True: the end of the turn is the answer of this primitive. At most one turn of a primitive can be awaited. */
  readonly wait?: boolean;
  readonly deadlineMs?: number;
}

export interface NewAgentRequest {
  readonly profile: ProfileRow;
  /** Unique in the project. Default: made of the profile's name and the agent's id. */
  readonly name?: string;
  /** Lineage: the agent it comes after. */
  readonly derivedFrom?: AgentId;
}

/** What a handler works with. Its effects are gathered and committed with its answer, in one transaction. */
export interface HandlerTools {
  /** For reads: sees what the primitive has made so far, and opens no transaction when it has made nothing. */
  readonly db: Queryable;
  /** The primitive's transaction; it begins with the first statement run on it. */
  readonly tx: Tx;
  /** Packs in the caller's name; boxes and cards become part of the primitive's transaction. */
  readonly packer: HandoverPacker;
  readonly ctx: CallerContext;
  /** The current version, or the one named. @throws KernelError `not_found`. */
  findProfile(name: string, version?: number): Promise<ProfileRow>;
  /** By id or name. @throws KernelError `not_found`. */
  findAgent(ref: string): Promise<AgentRow>;
  /** @throws KernelError `delegation_denied` unless the caller's policy allows the target. */
  checkDelegation(target: DelegationTarget): void;
  /**
   * Makes an agent without a turn; the caller owns it. A turn may be submitted to it at once, as to any agent.
   *
   * @throws KernelError `agent_exists` when the name is taken, `bad_request` for one that is blank, too long or an id.
   */
  createAgent(request: NewAgentRequest): Promise<AgentRow>;
  /** @throws KernelError `depth_exceeded`, `delegation_cycle`. */
  submitTurn(request: SubmitTurnRequest): Promise<TurnRef>;
  /** Ends the calling turn with this deliverable. Cannot be combined with other effects. */
  endTurn(deliverable: JsonValue): void;
}

/** A primitive: its arguments, and what it does. The built-in ones are made of this very interface. */
export interface Handler<I = unknown> {
  readonly description: string;
  readonly input: z.ZodType<I>;
  /** The profiles it will ask `findProfile` for, as far as the arguments tell: they are then loaded with the caller. */
  profileNames?(input: I): readonly string[];
  /**
   * Its effects are what it gathers and writes through its tools. It may run again when its transaction lost a race or its
   * connection, so it must have no other effect.
   */
  handle(input: I, tools: HandlerTools): Promise<JsonValue>;
}
