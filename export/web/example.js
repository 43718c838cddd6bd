// Twenty lines to try the search on, and a query that shares no word with the line it means.

export const QUERY = "broken display";

export const EXAMPLE = [
  "My parcel was supposed to arrive on Monday and is still not here.",
  "How do I change the password of my account?",
  "The app crashes every time I open the camera.",
  "I was charged twice for the same order.",
  "Could you send the invoice to our accounting department?",
  "The blue jacket is too small, I would like a larger one.",
  "Your support team solved my problem within minutes, thank you!",
  "Is there a discount for students?",
  "The battery lasts only two hours.",
  "I want to cancel my subscription at the end of the month.",
  "Do you deliver to Norway?",
  "The screen arrived with a crack in the corner.",
  "Where can I download the manual?",
  "I can't log in since the last update.",
  "Please delete all the data you hold about me.",
  "Can two people use one licence?",
  "The sound cuts out when I connect my headphones.",
  "I forgot to enter my voucher at the checkout.",
  "When will the red shoes be available again?",
  "The courier left the box in the rain.",
];
