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

/** The inputs of one try. */
export interface Attempt {
  readonly parsed: ParsedSubmission;
  readonly options: SubmitOptions & InnerSubmitOptions;
  readonly caller: Caller;
  /** The answer of an earlier try was lost, so that try may still be committed at any time. */
  readonly isAgain: boolean;
  /** Erasures wait until this try has ended: cards were erased while an earlier try read them. */
  readonly holdsErasures: boolean;
  /** The effects that earlier tries have written, if they were committed. This try adds its own. */
  readonly written: Written[];
  /** Aborts the handler. It has no effect after the handler has answered. */
  readonly signal: AbortSignal;
}

/** The data that the handler's tools use in one try. The tools add to the try's draft, and change nothing here. */
export interface TryContext {
  readonly runtime: Pick<RuntimeCore, 'prices' | 'builds' | 'limits' | 'strategies'>;
  readonly caller: Caller;
  readonly ctx: CallerContext;
  /** The connections for reads and writes. */
  readonly unit: Pick<UnitOfWork, 'db' | 'tx'>;
  readonly call: InnerSubmitOptions['call'];
  /** The call that has waited for an approval, and now waits for the turn that is made. */
  readonly begins: InnerSubmitOptions['begins'];
  /** The parent has ended, and its end starts these turns. */
  readonly isWoken: boolean;
  /** Aborts the handler. It has no effect after the handler has answered. */
  readonly signal: AbortSignal;
  /** True when the handler is one of the kernel's own. */
  readonly isOwn: boolean;
}
