/** The policy that the description of handoffs gives, to the letter. Nothing but tests uses it. */
export const SEED_POLICY = `tools:
  handoff:
    permission: REQUIRE_APPROVAL

rules:
  # Allow handoffs in development
  - condition:
      environment: development
      tool_name: handoff
    permission: ALWAYS

  # Require approval for cross-platform handoffs
  - condition:
      tool_name: handoff
      context:
        platform: ["openai", "anthropic"]
    permission: REQUIRE_APPROVAL

  # Block handoffs to external systems
  - condition:
      tool_name: handoff
      context:
        target_agent: "external-*"
    permission: NEVER
`;
