import { TAPE_HANDOFF } from '@boxcar/kernel';
import type { Handler } from '../handler/index.js';
import { createBox, grantBox } from './boxes.js';
import { cancel } from './cancel.js';
import { collect } from './collect.js';
import { contextHandoff } from './context-handoff.js';
import { askExpert, delegateAsync, launchPrincipal } from './delegate.js';
import { forkJoin } from './fork-join.js';
import { provisionAgent } from './provision-agent.js';
import { raiseBudget } from './raise-budget.js';
import { submitResult } from './submit-result.js';
import { tapeHandoff } from './tape-handoff.js';

/** The kernel's primitives, by name. */
export const BUILT_IN: ReadonlyMap<string, Handler> = new Map(
  Object.entries({
    delegate_async: delegateAsync,
    launch_principal: launchPrincipal,
    ask_expert: askExpert,
    fork_join: forkJoin,
    collect: collect,
    context_handoff: contextHandoff,
    submit_result: submitResult,
    provision_agent: provisionAgent,
    cancel: cancel,
    create_box: createBox,
    grant_box: grantBox,
    raise_budget: raiseBudget,
    [TAPE_HANDOFF.name]: tapeHandoff,
  }) as [string, Handler][],
);
