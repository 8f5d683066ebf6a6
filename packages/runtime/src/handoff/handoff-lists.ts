/** Handoffs of a project, page by page. */
import {
  type AgentId,
  HANDOFF_STATUSES,
  type Handoff,
  type HandoffPhase,
  type HandoffStatus,
  isCleanText,
  normalizePlatform,
  type ProjectId,
  phasesOf,
  safeParse,
  toBadRequest,
} from '@boxcar/kernel';
import { listHandoffs } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import { type PagePlace, readCursor } from '../lib/index.js';

export interface ListHandoffsOptions {
  readonly source_agent?: string | undefined;
  readonly target_agent?: string | undefined;
  readonly status?: HandoffStatus | undefined;
  /** Any name of the platform. */
  readonly platform?: string | undefined;
  /** The caller's run, or the run of the turn that requested or serves the handoff. */
  readonly run?: string | undefined;
  /** 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the previous page. */
  readonly cursor?: string | undefined;
}

const placeIn = (cursor: string): PagePlace | undefined => readCursor('handoffs', cursor);

const cleanText = z.string().min(1).refine(isCleanText, 'must be without NUL characters and lone surrogates');

const listSchema = z.strictObject({
  source_agent: cleanText.optional(),
  target_agent: cleanText.optional(),
  status: z.enum(HANDOFF_STATUSES).optional(),
  platform: cleanText.optional(),
  run: cleanText.optional(),
  limit: z.int().min(1).max(1_000).default(50),
  cursor: z
    .string()
    .refine((text) => placeIn(text) !== undefined, 'must be the next_cursor of a page of handoffs')
    .optional(),
});

/** A page of handoffs, the newest first. */
export interface HandoffPage {
  readonly handoffs: readonly Handoff[];
  /** Null: this is the last page. */
  readonly next_cursor: string | null;
}

/** The checked options of a list, with their defaults. Does not read the database. @throws KernelError `bad_request`. */
export function checkHandoffOptions(options: ListHandoffsOptions): z.output<typeof listSchema> {
  const parsed = safeParse(listSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, 'options');
  return parsed.data;
}

/** @param by - An agent that sees only its own requests. @throws KernelError `bad_request`. */
export async function listHandoffPage(
  runtime: Pick<RuntimeCore, 'pool'>,
  projectId: ProjectId,
  options: ListHandoffsOptions = {},
  by: { readonly agentId?: AgentId | undefined } = {},
): Promise<HandoffPage> {
  const { source_agent, target_agent, status, platform, run, limit, cursor } = checkHandoffOptions(options);
  const phases: readonly HandoffPhase[] | undefined = status && phasesOf(status);
  const rows = await listHandoffs(runtime.pool, {
    projectId,
    sourceAgent: source_agent,
    sourceAgentId: by.agentId,
    targetAgent: target_agent,
    platform: platform === undefined ? undefined : (normalizePlatform(platform) ?? platform.toLowerCase()),
    phases,
    run,
    limit: limit + 1,
    after: cursor === undefined ? undefined : placeIn(cursor),
  });
  const shown = rows.slice(0, limit);
  const last = rows.length > limit ? shown.at(-1) : undefined;
  return {
    handoffs: shown.map(({ place_at: _place, ...handoff }) => handoff),
    next_cursor: last === undefined ? null : `handoffs:${last.place_at}:${last.handoff_id}`,
  };
}
