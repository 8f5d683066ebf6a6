import { startTimer } from '@boxcar/kernel';

/**
 * Settles like `work`, or rejects after `limitMs` with an error that names the part. A later failure of `work` is not reported.
 */
export async function withinTime<T>(work: Promise<T>, limitMs: number, part: string): Promise<T> {
  work.catch(() => undefined);
  let clear: () => void = () => undefined;
  const late = new Promise<never>((_resolve, reject) => {
    ({ clear } = startTimer(limitMs, () =>
      reject(new Error(`${part}: not done within ${Math.round(limitMs)} ms`)),
    ));
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clear();
  }
}
