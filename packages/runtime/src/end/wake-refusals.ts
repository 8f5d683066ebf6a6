/**
 * With these errors no turn is started for the report. The report stays on the tape, for the next turn of its agent.
 */
export const REFUSALS: readonly string[] = [
  'canceled',
  'budget_exceeded',
  'depth_exceeded',
  'delegation_denied',
  'box_not_authorized',
  'project_archived',
];
