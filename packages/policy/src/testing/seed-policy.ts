/** The policy from the description of handoffs, copied exactly. Only tests use it. */
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
