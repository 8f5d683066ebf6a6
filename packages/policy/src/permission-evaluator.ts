import { KernelError } from '@boxcar/kernel';
import { readSettings } from './config.js';
import { evaluatePolicy, type PolicyAnswer, type PolicyContext } from './evaluate.js';
import { parsePolicy } from './parse-policy.js';
import type { Policy } from './policy.js';
import { type PolicyClock, systemClock, WatchedPolicy } from './watched-policy.js';

export interface PermissionEvaluatorOptions {
  /** A YAML file. A change of it is used at the latest 5 s later. Default: `BOXCAR_POLICY_FILE`, where there is no `text`. */
  readonly file?: string | undefined;
  /** YAML, in place of a file. */
  readonly text?: string | undefined;
  /** Default: `BOXCAR_ENVIRONMENT`, else `production`. */
  readonly environment?: string | undefined;
  /** Called once for each state of the file that is broken or cannot be read. The last good policy stays in use. It must not throw. */
  readonly onProblem?: ((problem: KernelError) => void) | undefined;
  /** @internal Tests move it. */
  readonly clock?: PolicyClock | undefined;
}

/** What is asked of a policy; the environment is the evaluator's. */
export interface PermissionRequest {
  readonly tool: string;
  readonly context?: PolicyContext | undefined;
}

function checkOptions({ file, text, environment }: PermissionEvaluatorOptions): void {
  if (file !== undefined && text !== undefined)
    throw new KernelError('bad_request', {
      message: 'text: a policy has a file or a text, not both.',
      details: { field: 'text' },
    });
  for (const [field, value] of Object.entries({ file, environment }))
    if (value?.trim() === '')
      throw new KernelError('bad_request', { message: `${field}: must not be blank.`, details: { field } });
}

/** Answers what a policy says of calls in one environment, and follows the changes of its file. Rule: docs/reference/policy.md. */
export class PermissionEvaluator {
  readonly environment: string;
  readonly #source: { readonly policy: Policy; readonly problem?: KernelError | undefined };

  /**
   * @throws KernelError `policy_invalid` for what is wrong in the policy, `bad_config` when there is none or its file cannot be read,
   * `bad_request` for wrong options. A program does not start then.
   */
  constructor(options: PermissionEvaluatorOptions = {}) {
    checkOptions(options);
    const settings = readSettings();
    const { text, environment = settings.environment, clock = systemClock } = options;
    this.environment = environment;
    if (text !== undefined) {
      this.#source = { policy: parsePolicy(text) };
      return;
    }
    const file = options.file ?? settings.file;
    if (file === undefined)
      throw new KernelError('bad_config', {
        message: 'There is no policy.',
        next: 'Set BOXCAR_POLICY_FILE, or give a file or a text.',
      });
    this.#source = new WatchedPolicy(file, {
      clock,
      onProblem: (problem) => options.onProblem?.(problem),
    });
  }

  /** The policy in use: its `version` and `text` are what is recorded. */
  get policy(): Policy {
    return this.#source.policy;
  }

  /** Why the file is not what is used now: it is broken or cannot be read. */
  get problem(): KernelError | undefined {
    return this.#source.problem;
  }

  /** Decides one call. It may look at the file, and waits for nothing else. */
  evaluate({ tool, context }: PermissionRequest): PolicyAnswer {
    return evaluatePolicy(this.policy, { tool, context, environment: this.environment });
  }
}
