/**
 * Agents of this installation with the interface of the adapters of other platforms, for programs that work with adapters themselves.
 * `HandoffTool` does not use it: there, a native handoff makes its turn in its own transaction.
 */
import type {
  AdapterRequest,
  AdapterResult,
  CancelOptions,
  ExecuteOptions,
  HandoffAdapter,
} from '@boxcar/adapters';
import { KernelError, normalizePlatform, readHandoffTarget, type TurnId, toErrorBody } from '@boxcar/kernel';
import { DEFAULT_PROJECT } from '../approval/index.js';
import type { RuntimeCore } from '../core/index.js';
import { deliverableOf } from '../lib/index.js';

export interface NativeAdapterOptions {
  /** Without a runtime, executions fail. */
  readonly runtime?: RuntimeCore | undefined;
  /** Default `default`. */
  readonly projectId?: string | undefined;
}

const noRuntime = (): KernelError =>
  new KernelError('bad_config', {
    message: 'The adapter of this installation has no runtime.',
    next: 'Make it with a runtime: new NativeHandoffAdapter({ runtime }).',
  });

export class NativeHandoffAdapter implements HandoffAdapter {
  readonly platform = 'agdd';
  readonly retry = 'safe';
  readonly capabilities: HandoffAdapter['capabilities'] = {
    streaming: false,
    cancel: true,
    messages: false,
    max_context_tokens: null,
    carries: ['text', 'json', 'file', 'image', 'tool_call', 'tool_result'],
  };
  readonly #options: NativeAdapterOptions;

  constructor(options: NativeAdapterOptions = {}) {
    this.#options = options;
  }

  supportsPlatform(name: string): boolean {
    return normalizePlatform(name) === this.platform;
  }

  /**
   * Gives the task to the existing agent of this name, or to a new agent of the profile of this name, and waits for the end.
   *
   * @throws KernelError the error of the failed turn, or the reason why it could not begin; the signal's reason after an abort.
   */
  async executeHandoff(request: AdapterRequest, options: ExecuteOptions): Promise<AdapterResult> {
    const { runtime, projectId = DEFAULT_PROJECT } = this.#options;
    if (runtime === undefined) throw noRuntime();
    const { signal, idempotencyKey, onRemoteId } = options;
    signal.throwIfAborted();
    const { target_agent, task, context, payload, cards } = request;
    const { answer: box } = await runtime.accept(
      'create_box',
      {
        cards: [
          { type: 'handoff_context', content: { kind: 'json', data: context } },
          ...(payload === null
            ? []
            : [{ type: 'handoff_payload', content: { kind: 'json', data: payload } }]),
        ],
        card_ids: cards.map(({ id }) => id),
      },
      { projectId, idempotencyKey: `native-handoff-box:${idempotencyKey}` },
    );
    const { answer } = await runtime.accept(
      'delegate_async',
      {
        ...(await strategyOf(runtime, target_agent, projectId)),
        instruction: task,
        context_box_id: (box as { box_id: string }).box_id,
      },
      { projectId, idempotencyKey: `native-handoff:${idempotencyKey}` },
    );
    const turnId = (answer as { turn_id: TurnId }).turn_id;
    onRemoteId?.(turnId);
    const state = await runtime.watcher.wait(turnId, { project: projectId, signal });
    if (state.status !== 'success')
      throw new KernelError('platform_failed', {
        message: `Turn ${turnId} ended as ${state.status}: ${state.error?.message ?? 'no error'}`,
        next: '',
        details: { turn_id: turnId, error: state.error ?? toErrorBody(undefined) },
      });
    return {
      result: deliverableOf(state.content),
      usage: null,
      remote_id: turnId,
      loss: { sent_cards: cards.map(({ id }) => id), lost: [] },
    };
  }

  async cancel(_request: Pick<AdapterRequest, 'target'>, { remoteId }: CancelOptions): Promise<boolean> {
    const { runtime, projectId = DEFAULT_PROJECT } = this.#options;
    if (runtime === undefined) throw noRuntime();
    await runtime.accept('cancel', { turn_id: remoteId, reason: 'The handoff was canceled.' }, { projectId });
    return true;
  }
}

/**
 * The prefix `agent:` or `profile:` decides. Without it, the name of a profile means a new agent of this profile, and any other name
 * means the existing agent with this name.
 */
async function strategyOf(
  runtime: RuntimeCore,
  ref: string,
  projectId: string,
): Promise<{ readonly target_strategy: 'new' | 'reuse'; readonly target_ref: string }> {
  const { kind, name } = readHandoffTarget(ref);
  if (kind !== 'any') return { target_strategy: kind === 'profile' ? 'new' : 'reuse', target_ref: name };
  const facts = await runtime.open({
    project: projectId,
    sourceAgentId: undefined,
    sourceAgentName: undefined,
    idempotencyKey: `native-handoff:${name}`,
    isOwnKey: false,
    profileNames: [name],
    parentTurnId: undefined,
  });
  return { target_strategy: facts?.profiles.has(name) === true ? 'new' : 'reuse', target_ref: name };
}

/** The name of this class in the source system. */
export { NativeHandoffAdapter as AGDDHandoffAdapter };
