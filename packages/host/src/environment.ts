/** The environment of the process, for code that needs none of its settings; config.ts reads the settings. */
import { declareSecrets } from '@boxcar/kernel/base';

export type Environment = Readonly<Record<string, string | undefined>>;

export const processEnvironment = (): Environment => process.env;

/**
 * The environment of this process with other values for some variables, for a child process or for settings that a program gives. The
 * value undefined removes a variable.
 */
export const childEnvironment = (other: Environment): Record<string, string | undefined> => ({
  ...process.env,
  ...other,
});

/** Declares the secrets of an environment. Errors, log lines and tool results do not show them until the returned object is disposed. */
export const declareEnvironmentSecrets = (env: Environment = process.env): Disposable => declareSecrets(env);
