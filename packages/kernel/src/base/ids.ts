import { KernelError } from './errors.js';

declare const idKind: unique symbol;

/** A uuid as lower-case text with dashes, branded by the kind of object that it identifies. */
export type Id<K extends string> = string & { readonly [idKind]: K };

export type ProjectId = Id<'project'>;
export type CardId = Id<'card'>;
export type BoxId = Id<'box'>;
export type ProfileId = Id<'profile'>;
export type AgentId = Id<'agent'>;
export type RunId = Id<'run'>;
export type TurnId = Id<'turn'>;
export type ToolCallId = Id<'tool_call'>;
export type WorkerId = Id<'worker'>;
export type BatchId = Id<'batch'>;
export type TicketId = Id<'ticket'>;
export type HandoffId = Id<'handoff'>;
export type DeliveryId = Id<'delivery'>;
export type KeyId = Id<'key'>;

/** Creates a new uuidv7 of any kind. It is passed in, so that the kernel does no I/O. */
export type NewId = <K extends string>() => Id<K>;

const dashed = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const bare = /^[0-9a-f]{32}$/;

/** Parses an id with dashes or of 32 hex digits; `undefined` for any other text. */
export function tryParseId<K extends string>(text: string): Id<K> | undefined {
  const lower = text.toLowerCase();
  if (dashed.test(lower)) return lower as Id<K>;
  if (!bare.test(lower)) return undefined;
  const parts = [
    lower.slice(0, 8),
    lower.slice(8, 12),
    lower.slice(12, 16),
    lower.slice(16, 20),
    lower.slice(20),
  ];
  return parts.join('-') as Id<K>;
}

/** @throws KernelError `bad_request` when `text` is not a valid id; `field` names its place. */
export function parseId<K extends string>(text: string, field: string): Id<K> {
  const id = tryParseId<K>(text);
  if (id === undefined) {
    throw new KernelError('bad_request', {
      message: `${field}: '${text.slice(0, 80)}' is not a valid id (uuid with dashes, or 32 hex digits).`,
      details: { field },
    });
  }
  return id;
}
