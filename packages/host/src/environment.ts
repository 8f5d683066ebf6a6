/** The environment of the process, for those that need none of its settings; config.ts reads them. */
import { declareSecrets } from '@boxcar/kernel/base';

export type Environment = Readonly<Record<string, string | undefined>>;

export const processEnvironment = (): Environment => process.env;

/**
 * The environment of this process with other values for some variables, for a child of it or for settings given by a program; undefined
 * removes one.
 */
export const childEnvironment = (other: Environment): Record<string, string | undefined> => ({
  ...process.env,
  ...other,
});

/** Declares the secrets of an environment, which no error, log line or result of a tool shows while the answer is in use. */
export const declareEnvironmentSecrets = (env: Environment = process.env): Disposable => declareSecrets(env);
