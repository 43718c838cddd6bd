/** What is thrown for what is not a bug. Messages read *place: fact; way out*. */

export const GET_AGAIN = "get the bundle again, or export it again from its run";

/** The caller can fix it. */
export class UserError extends Error {
  name = "UserError";
}

/** A file or an embedding is not the one that was exported. */
export class CheckFailed extends Error {
  name = "CheckFailed";
  details = {}; // the measured values
}
