/** How the values of flags and arguments are read. It loads nothing but commander, since every command line needs it. */
import { type Argument, type Command, InvalidArgumentError, type Option } from 'commander';

/** A flag that may be given several times. */
export const collect =
  <T>(read: (text: string) => T) =>
  (text: string, before: readonly T[] | undefined): readonly T[] => [...(before ?? []), read(text)];

/** A text that must say something. */
export function notBlank(text: string): string {
  if (text.trim() === '') throw new InvalidArgumentError('It must not be blank.');
  return text;
}

/** A text as it is, for {@link collect}. */
export const same = (text: string): string => text;

function refuse(one: Argument | Option): void {
  if (one.parseArg !== undefined) return;
  if (one.variadic) one.argParser(collect(notBlank));
  else one.argParser(notBlank);
}

/** Arguments and values of options of a command and those below it must not be blank, unless a rule of their own reads them. */
export function refuseBlank(command: Command): void {
  for (const argument of command.registeredArguments) refuse(argument);
  for (const option of command.options) if (option.required || option.optional) refuse(option);
  for (const child of command.commands) refuseBlank(child);
}
