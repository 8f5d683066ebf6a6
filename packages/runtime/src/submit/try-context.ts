import type {
  Caller,
  InnerSubmitOptions,
  ParsedSubmission,
  RuntimeCore,
  SubmitOptions,
} from '../core/index.js';
import type { CallerContext } from '../handler/index.js';
import type { Written } from './announce.js';
import type { UnitOfWork } from './unit-of-work.js';

/** What one try begins with. */
export interface Attempt {
  readonly parsed: ParsedSubmission;
  readonly options: SubmitOptions & InnerSubmitOptions;
  readonly caller: Caller;
  /** An earlier try was lost, and may be committed at any time. */
  readonly isAgain: boolean;
  /** Erasures wait until this try has ended: cards were erased while an earlier try read them. */
  readonly holdsErasures: boolean;
  /** What earlier tries have written, if they were committed. What this try writes is added. */
  readonly written: Written[];
  /** Cancels the handler until it has answered. */
  readonly signal: AbortSignal;
}

/** What the tools of the handler go by in one try. They add to its draft, and change nothing here. */
export interface TryContext {
  readonly runtime: Pick<RuntimeCore, 'prices' | 'builds' | 'limits' | 'strategies'>;
  readonly caller: Caller;
  readonly ctx: CallerContext;
  /** Where they read. */
  readonly unit: Pick<UnitOfWork, 'db' | 'tx'>;
  readonly call: InnerSubmitOptions['call'];
  /** The call that has waited for an approval, and waits for what is made now. */
  readonly begins: InnerSubmitOptions['begins'];
  /** The parent has ended, and its end starts these turns. */
  readonly isWoken: boolean;
  /** Cancels the handler until it has answered. */
  readonly signal: AbortSignal;
  /** The handler is the kernel's own. */
  readonly isOwn: boolean;
}
