/** Handoffs over HTTP: request, list, show and stream them, and answer their questions. Rule: docs/reference/http.md, "Handoffs". */
import {
  HANDOFF_STATUSES,
  type Handoff,
  isFinalPhase,
  isJsonObject,
  type JsonObject,
  KernelError,
  parseInput,
} from '@boxcar/kernel';
import { type HandoffInput, HandoffTool, type Runtime } from '@boxcar/runtime';
import { findHandoffId } from '@boxcar/store';
import { z } from 'zod';
import type { ServerEvent } from '../event-stream.js';
import { type Call, type Route, readQuery } from '../route.js';

const text = z.string().min(1);
const querySchema = z.strictObject({
  source_agent: text.optional(),
  target_agent: text.optional(),
  status: z.enum(HANDOFF_STATUSES).optional(),
  platform: text.optional(),
  run: text.optional(),
  limit: z
    .string()
    .regex(/^\d{1,4}$/, 'must be a number from 1 to 1000')
    .transform(Number)
    .optional(),
  cursor: text.optional(),
});

const replySchema = z.strictObject({ text: z.string(), question: z.int().min(1).optional() });

const json = (value: unknown, status = 200): Response =>
  Response.json(value, { status, headers: { 'cache-control': 'no-store' } });

const noHandoff = (ref: string): KernelError =>
  new KernelError('not_found', {
    message: `No handoff ${ref} in this project.`,
    details: { handoff_id: ref },
  });

/** The number of the last part that a reader has seen. @throws KernelError `bad_request`. */
function seqOf(lastEventId: string | undefined): number {
  if (lastEventId === undefined) return 0;
  if (/^\d{1,9}$/.test(lastEventId)) return Number(lastEventId);
  throw new KernelError('bad_request', {
    message: 'last-event-id: must be the id of an event of this stream.',
    details: { field: 'last-event-id' },
  });
}

/**
 * The routes of handoffs. A project key sees all handoffs of the project. An agent's key sees the handoffs that the agent requested, and
 * requests new ones in the agent's name.
 */
class Handoffs {
  readonly #runtime: Runtime;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  readonly list = async (call: Call): Promise<Response> => {
    const parsed = parseInput(querySchema, readQuery(call.url));
    const { agent } = call.principal;
    const { source_agent = agent?.name } = parsed;
    if (agent !== null && source_agent !== agent.name) return json({ handoffs: [], next_cursor: null });
    return json(await this.#toolOf(call).listHandoffs({ ...parsed, source_agent }));
  };

  readonly create = async (call: Call): Promise<Response> => {
    const body = await call.json();
    if (!isJsonObject(body))
      throw new KernelError('bad_request', {
        message: 'The body must be an object.',
        details: { field: '' },
      });
    const request = { source_agent: this.#sourceOf(call, body), ...body, wait: false };
    // The tool validates the input, so its schema names the error.
    const answer = await this.#toolOf(call).handoff(request as unknown as HandoffInput, {
      signal: call.signal,
    });
    return json(answer, answer.status === 'completed' ? 200 : 202);
  };

  readonly show = async (call: Call): Promise<Response> => {
    const { tool, handoff } = await this.#load(call);
    return json({ handoff, events: await tool.getEvents(handoff.handoff_id) });
  };

  readonly messages = async (call: Call): Promise<Response> => {
    const { tool, handoff } = await this.#load(call);
    return json({ messages: await tool.messages(handoff.handoff_id) });
  };

  readonly reply = async (call: Call): Promise<Response> => {
    const { tool, handoff } = await this.#load(call);
    const parsed = parseInput(replySchema, await call.json());
    const { text: words, question } = parsed;
    const { keyId } = call.principal;
    return json({ messages: await tool.reply(handoff.handoff_id, words, { question, by: keyId }) });
  };

  readonly events = async (call: Call): Promise<Response> => {
    const { tool, handoff } = await this.#load(call);
    const seen = seqOf(call.request.headers.get('last-event-id') ?? undefined);
    // A reader that has seen the last part needs no stream. Status 204 tells it not to reconnect.
    if (isFinalPhase(handoff.phase) && (await isOver(tool, handoff.handoff_id, seen)))
      return new Response(null, { status: 204 });
    return call.events(({ lastEventId, signal }) =>
      follow(tool, handoff.handoff_id, { afterSeq: seqOf(lastEventId), signal }),
    );
  };

  #toolOf({ principal }: Call): HandoffTool {
    return new HandoffTool({
      runtime: this.#runtime,
      projectId: principal.projectId,
      handoffEnabled: this.#runtime.handoffs.isEnabled,
      concurrency: 0,
    });
  }

  #sourceOf({ principal: { agent, name } }: Call, { source_agent }: JsonObject): string {
    if (agent === null) return name;
    if (source_agent === undefined || source_agent === agent.name || source_agent === agent.id)
      return agent.name;
    throw new KernelError('bad_request', {
      message: `source_agent: is the agent of the key, ${agent.name}; leave it out.`,
      details: { field: 'source_agent' },
    });
  }

  /** The handoff in the path, by its id or a prefix of the id. A handoff that the key may not see is answered as missing. */
  async #load(call: Call): Promise<{ readonly tool: HandoffTool; readonly handoff: Handoff }> {
    const { params, principal } = call;
    const { handoff_id: ref = '' } = params;
    const tool = this.#toolOf(call);
    try {
      const { handoffId } = await findHandoffId(this.#runtime.pool, ref, principal.projectId);
      const handoff = await tool.getHandoff(handoffId);
      if (handoff !== null && (principal.agent === null || handoff.source_agent === principal.agent.name))
        return { tool, handoff };
    } catch (error) {
      if (!(error instanceof KernelError && error.code === 'not_found')) throw error;
    }
    throw noHandoff(ref);
  }
}

/** Whether a reader has seen the last part. */
async function isOver(tool: HandoffTool, id: string, seen: number): Promise<boolean> {
  for await (const _part of tool.stream(id, { afterSeq: seen })) return false;
  return true;
}

async function* follow(
  tool: HandoffTool,
  id: string,
  { afterSeq, signal }: { readonly afterSeq: number; readonly signal: AbortSignal },
): AsyncGenerator<ServerEvent> {
  try {
    for await (const part of tool.stream(id, { afterSeq, signal }))
      yield { id: String(part.seq), event: `handoff.${part.type}`, data: part };
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** The routes of handoffs, for the frame to mount. */
export function handoffRoutes(runtime: Runtime): readonly Route[] {
  const handoffs = new Handoffs(runtime);
  const one = '/handoffs/:handoff_id';
  return [
    { method: 'GET', path: '/handoffs', scope: 'handoffs:read', handle: handoffs.list },
    { method: 'POST', path: '/handoffs', scope: 'handoffs:write', handle: handoffs.create },
    { method: 'GET', path: one, scope: 'handoffs:read', handle: handoffs.show },
    { method: 'GET', path: `${one}/events`, scope: 'handoffs:read', handle: handoffs.events },
    { method: 'GET', path: `${one}/messages`, scope: 'handoffs:read', handle: handoffs.messages },
    { method: 'POST', path: `${one}/messages`, scope: 'handoffs:write', handle: handoffs.reply },
  ];
}
