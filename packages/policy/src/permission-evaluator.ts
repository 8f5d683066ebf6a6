import { KernelError } from '@boxcar/kernel';
import { readSettings } from './config.js';
import { evaluatePolicy, type PolicyAnswer, type PolicyContext } from './evaluate.js';
import { parsePolicy } from './parse-policy.js';
import type { Policy } from './policy.js';
import { type PolicyClock, systemClock, WatchedPolicy } from './watched-policy.js';

export interface PermissionEvaluatorOptions {
  /** A YAML file. A change takes effect after at most 5 s. Default: `BOXCAR_POLICY_FILE`, when there is no `text`. */
  readonly file?: string | undefined;
  /** YAML text instead of a file. */
  readonly text?: string | undefined;
  /** Default: `BOXCAR_ENVIRONMENT`, else `production`. */
  readonly environment?: string | undefined;
  /** Called once for each state of the file that is not valid or cannot be read. The last good policy stays in use. It must not throw. */
  readonly onProblem?: ((problem: KernelError) => void) | undefined;
  /** @internal Tests replace it. */
  readonly clock?: PolicyClock | undefined;
}

/** A call to decide. The environment comes from the evaluator. */
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

/** Decides calls in one environment by a policy, and follows the changes of its file. Rule: docs/reference/policy.md. */
export class PermissionEvaluator {
  readonly environment: string;
  readonly #source: { readonly policy: Policy; readonly problem?: KernelError | undefined };

  /**
   * @throws KernelError `policy_invalid` for errors in the policy, `bad_config` when there is no policy or its file cannot be read,
   * `bad_request` for wrong options. A program must not start then.
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

  /** The policy in use: its `version` and `text` are recorded with decisions. */
  get policy(): Policy {
    return this.#source.policy;
  }

  /** Why the current state of the file is not in use: it is not valid or cannot be read. */
  get problem(): KernelError | undefined {
    return this.#source.problem;
  }

  /** Decides one call. It may check the file, and waits for nothing else. */
  evaluate({ tool, context }: PermissionRequest): PolicyAnswer {
    return evaluatePolicy(this.policy, { tool, context, environment: this.environment });
  }
}
