/** Finds the caller of a submission. */
import { agentIdIn, KernelError, parseId, type TurnId, tryParseId } from '@boxcar/kernel';
import { type CallerFacts, type CallerRequest, type CallerTransaction, loadCallers } from '@boxcar/store';
import type {
  Caller,
  InnerSubmitOptions,
  ParsedSubmission,
  RuntimeCore,
  SubmitOptions,
} from '../core/index.js';
import { checkText } from './check-text.js';
import { nameOfSession } from './session-name.js';

export type CallerOptions = SubmitOptions & {
  readonly call?: Pick<NonNullable<InnerSubmitOptions['call']>, 'turnId' | 'toolCallId' | 'holderId'>;
  readonly wokenBy?: TurnId;
  readonly within?: CallerTransaction;
  readonly isJobKey?: boolean;
  readonly isKernelKey?: boolean;
  readonly doorJobId?: string;
  readonly doorNoteId?: string;
  readonly handler?: InnerSubmitOptions['handler'];
  readonly begins?: InnerSubmitOptions['begins'];
};

/**
 * Looks up the caller of a submission.
 *
 * @param settings.mayBeKept - Cached facts may be used. Default: false.
 * @throws KernelError `not_found` for project, source agent or calling turn.
 */
export async function findCaller(
  runtime: RuntimeCore,
  options: CallerOptions,
  { key, isOwnKey, profileNames }: ParsedSubmission['request'],
  { mayBeKept = false }: { readonly mayBeKept?: boolean } = {},
): Promise<Caller> {
  checkText(options.projectId, 'project_id', 200);
  const sourceAgent =
    typeof options.sourceAgentId === 'object'
      ? nameOfSession(options.sourceAgentId, 'source_agent_id')
      : options.sourceAgentId;
  checkText(sourceAgent, 'source_agent_id', 200);
  checkText(options.channelId, 'channel_id', 200);
  checkText(options.traceparent, 'traceparent', 200);
  const project = options.projectId ?? 'default';
  const request = {
    project: tryParseId(project) ?? project,
    sourceAgentId: sourceAgent === undefined ? undefined : agentIdIn(sourceAgent),
    sourceAgentName: sourceAgent,
    idempotencyKey: key,
    isOwnKey,
    profileNames,
    parentTurnId:
      options.call?.turnId ??
      options.wokenBy ??
      (options.parentTurnId === undefined
        ? undefined
        : parseId<'turn'>(options.parentTurnId, 'parent_turn_id')),
  };
  const { within } = options;
  const kept = mayBeKept && within === undefined ? runtime.keptCallers.find(request) : undefined;
  const caller = kept ?? (await lookUp(runtime, request, within));
  if (caller === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const { source } = caller;
  if (source === undefined) {
    throw new KernelError('not_found', {
      message:
        typeof options.sourceAgentId === 'object'
          ? `source_agent_id: no session '${options.sourceAgentId.session}' of workspace '${options.sourceAgentId.workspace}' in project '${project}'.`
          : `No agent '${sourceAgent ?? ''}' in project '${project}'.`,
      details: { source_agent_id: sourceAgent, project_id: caller.projectId },
    });
  }
  const parentTurnId = options.call?.turnId ?? options.wokenBy ?? options.parentTurnId;
  if (parentTurnId !== undefined && caller.parent === undefined) {
    throw new KernelError('not_found', {
      message: `No turn '${parentTurnId}' in project '${project}'.`,
      details: { parent_turn_id: parentTurnId, project_id: caller.projectId },
    });
  }
  return { ...caller, source, isKept: kept !== undefined };
}

async function lookUp(
  { open, keptCallers }: RuntimeCore,
  request: CallerRequest,
  within: CallerTransaction | undefined,
): Promise<CallerFacts | undefined> {
  // A caller's transaction may contain rows that are never committed, so its facts are not cached.
  if (within !== undefined) return (await loadCallers(within.db, [request]))[0];
  const found = await open(request);
  keptCallers.keep(request, found);
  return found;
}
