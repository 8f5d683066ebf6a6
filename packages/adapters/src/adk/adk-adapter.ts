/** Handoffs to agents of the Agent Development Kit: apps of its API server, and any A2A agent that has a card. */
import { TaskState } from '@a2a-js/sdk';
import { KernelError, normalizePlatform } from '@boxcar/kernel';
import type {
  AdapterCapabilities,
  AdapterRequest,
  AdapterResult,
  CancelOptions,
  ExecuteOptions,
  HandoffAdapter,
} from '../adapter.js';
import { CARRIED_KINDS } from '../adapter.js';
import { AdapterError } from '../adapter-error.js';
import { checkCapabilities } from '../capabilities.js';
import { readSettings, readVariable } from '../config.js';
import { lossOf } from '../loss.js';
import { fixedPieces, type Piece, pieceOfCard } from '../pieces.js';
import { type AdkTarget, isAdkTarget, type Target } from '../targets/target.js';
import { checkKey } from '../wire/check-key.js';
import { Concealer } from '../wire/conceal.js';
import { type Caller, Exchange, failureOf } from '../wire/exchange.js';
import { createFetch } from '../wire/http-fetch.js';
import { AddressRules } from '../wire/private-address.js';
import { raceAbort } from '../wire/race-abort.js';
import { openAgent } from './a2a-agent.js';
import { runApp } from './app-server.js';
import { runAgent } from './run-agent.js';

export interface ADKAdapterOptions {
  /**
   * Hosts, addresses and networks of A2A agents that are allowed although they are not public. Default: `BOXCAR_TARGETS_ALLOW_PRIVATE`.
   */
  readonly allowPrivate?: readonly string[] | undefined;
  /** The interval between polls of a task whose stream has ended. Default: 1,000 ms. */
  readonly pollMs?: number | undefined;
}

const AGENT: AdapterCapabilities = {
  streaming: true,
  cancel: true,
  messages: true,
  max_context_tokens: null,
  carries: CARRIED_KINDS,
};

/** An app receives only text: whether its model could use the address of a file is not known. */
const APP: AdapterCapabilities = {
  streaming: false,
  cancel: false,
  messages: false,
  max_context_tokens: null,
  carries: ['text', 'json', 'tool_call', 'tool_result'],
};

const DEFAULT_USER = 'boxcar';

/** The work of these agents may have side effects: an interrupted attempt is never repeated automatically. */
export class ADKHandoffAdapter implements HandoffAdapter {
  readonly platform = 'adk';
  readonly retry = 'never';
  readonly resumes = true;
  readonly capabilities = AGENT;
  readonly #rules: AddressRules;
  readonly #pollMs: number;

  /** @throws KernelError `bad_config` for an exception that is not a host, an address or a network. */
  constructor({ allowPrivate, pollMs = 1_000 }: ADKAdapterOptions = {}) {
    this.#rules = new AddressRules(allowPrivate ?? readSettings().allowPrivate);
    this.#pollMs = pollMs;
  }

  supportsPlatform(name: string): boolean {
    return normalizePlatform(name) === 'adk';
  }

  capabilitiesOf(target: Target): AdapterCapabilities {
    return isAdkTarget(target) && target.app !== undefined ? APP : AGENT;
  }

  async executeHandoff(request: AdapterRequest, options: ExecuteOptions): Promise<AdapterResult> {
    const { target } = request;
    if (!isAdkTarget(target))
      throw new KernelError('bad_request', {
        message: `target: the entry of '${request.target_agent}' is not of adk.`,
        details: { field: 'target', handoff_id: request.handoff_id },
      });
    return raceAbort(() => this.#execute(target, request, options), options.signal);
  }

  async #execute(
    target: AdkTarget,
    request: AdapterRequest,
    options: ExecuteOptions,
  ): Promise<AdapterResult> {
    const { cards, lost } = checkCapabilities(this, request);
    const { handoff_id, cards: packed } = request;
    const { attempt, signal, idempotencyKey, onPart, onRemoteId } = options;
    const { caller, key } = connect(target, handoff_id, attempt);
    using exchange = this.#open(target, { caller, key, signal });
    const { app, base_url: baseUrl, card_url: cardUrl, user_id: userId = DEFAULT_USER } = target;
    if (app === undefined || baseUrl === undefined) {
      const call = {
        cardUrl: cardUrl ?? '',
        request,
        cards,
        options,
        exchange,
        caller,
        pollMs: this.#pollMs,
      };
      const { result, remoteId, lost: ruledOut } = await runAgent(call);
      const loss = lossOf(packed, exchange.sentBodies, [...lost, ...ruledOut]);
      return { result, usage: null, remote_id: remoteId, loss };
    }
    const sessionId = `${handoff_id}-${attempt}`;
    onRemoteId?.(sessionId);
    const { instructions } = target;
    const pieces: readonly Piece[] = [
      ...(instructions === undefined ? [] : [{ kind: 'text', text: instructions } as const]),
      ...cards.map(pieceOfCard),
      ...fixedPieces(request),
    ];
    try {
      const call = { app, baseUrl, userId, sessionId, idempotencyKey, pieces };
      const answer = await runApp(call, exchange, caller);
      const result = caller.concealer.value(answer.result);
      if (typeof result === 'string') exchange.guard(onPart)({ type: 'text', text: result });
      const loss = lossOf(packed, exchange.sentBodies, lost);
      return { result, usage: answer.usage, remote_id: sessionId, loss };
    } catch (error) {
      throw exchange.explain(error, () =>
        failureOf(caller, { code: 'platform_failed', retryable: false }, 'could not be asked'),
      );
    }
  }

  /** Only agents can be told to stop. An app stops when its connection is closed, which an abort does. */
  async cancel({ target }: Pick<AdapterRequest, 'target'>, options: CancelOptions): Promise<boolean> {
    if (!isAdkTarget(target) || target.card_url === undefined) return false;
    const { remoteId, signal } = options;
    const { caller, key } = connect(target, remoteId, 1);
    using exchange = this.#open(target, { caller, key, signal });
    const { client } = await openAgent(target.card_url, exchange, caller);
    try {
      const { status } = await client.cancelTask(
        { tenant: '', id: remoteId, metadata: undefined },
        { signal: exchange.signal },
      );
      return status?.state === TaskState.TASK_STATE_CANCELED;
    } catch (error) {
      // The task has already ended, or the agent cannot stop it.
      const { status } = exchange.failure instanceof AdapterError ? exchange.failure.details : {};
      if (status === 400 || status === 404 || status === 409) return false;
      if (error instanceof Error && 'envelopeCode' in error) return false;
      throw exchange.explain(error, () =>
        failureOf(caller, { code: 'platform_failed', retryable: false }, 'did not take the cancellation'),
      );
    }
  }

  #open(
    { base_url, card_url }: AdkTarget,
    of: { readonly caller: Caller; readonly key: string | undefined; readonly signal: AbortSignal },
  ): Exchange {
    const { caller, key, signal } = of;
    const address = base_url ?? card_url ?? '';
    return new Exchange({
      fetch: createFetch(base_url === undefined ? this.#rules : undefined),
      signal,
      caller,
      authorization:
        key === undefined ? undefined : { origin: new URL(address).origin, value: `Bearer ${key}` },
    });
  }
}

/** The attempt as errors name it, and the key when the entry names a variable. */
function connect(
  { api_key_env: variable, base_url, card_url, app }: AdkTarget,
  handoffId: string,
  attempt: number,
): { readonly caller: Caller; readonly key: string | undefined } {
  const key = variable === undefined ? undefined : readVariable(variable);
  const concealer = new Concealer({
    key: { variable: variable ?? '', value: key ?? '' },
    model: app,
    addresses: [base_url, card_url],
  });
  const caller: Caller = { platform: 'adk', handoffId, attempt, keyVariable: variable, concealer };
  if (variable !== undefined) checkKey(key, caller);
  return { caller, key };
}
