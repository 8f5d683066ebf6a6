/**
 * Instructions that are comma commands. The operator can give such an instruction to an existing agent. Rule:
 * docs/reference/tape.md, "Commands".
 */
import { type DelegateAsync, isCommaCommand, type JsonValue, KernelError } from '@boxcar/kernel';
import type { HandlerTools } from '../handler/index.js';
import { runTapeCommand } from '../tool/index.js';

/** True for a command of the operator; an agent's instruction of this form is an ordinary text. */
export const isCommand = (instruction: string, { ctx }: HandlerTools): boolean =>
  ctx.source.isOperator && isCommaCommand(instruction);

/** @throws KernelError `bad_request`: a command needs the tape of one existing agent. */
export function refuseCommand(instruction: string, tools: HandlerTools, argument = 'instruction'): void {
  if (!isCommand(instruction, tools)) return;
  const field = `arguments.${argument}`;
  throw new KernelError('bad_request', {
    message: `${field}: begins with a comma, so it is a command; commands are taken by delegate_async with target_strategy reuse.`,
    details: { field },
  });
}

/**
 * Runs the command on the agent's tape. Its effect commits with its answer, and the submission's key returns the same answer
 * again.
 */
export async function handleCommand(
  input: Omit<DelegateAsync, 'target_ref'> & { readonly target_ref: string },
  tools: HandlerTools,
): Promise<JsonValue> {
  const surplus = (['context_box_id', 'result_fields', 'budget'] as const).find(
    (key) => input[key] !== undefined,
  );
  if (surplus !== undefined)
    throw new KernelError('bad_request', {
      message: `arguments.${surplus}: a comma command takes none.`,
      details: { field: `arguments.${surplus}` },
    });
  const agent = await tools.findAgent(input.target_ref);
  const tape = await tools.tape({ agent: agent.agentId });
  const { command, output, result } = await runTapeCommand(tape, input.instruction);
  return {
    status: 'success',
    agent_id: agent.agentId,
    output_box_id: tape.boxId,
    command,
    output,
    result,
  };
}
