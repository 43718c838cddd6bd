// Twenty lines to try the search on, and a query that shares no word with the line it means.

export const QUERY = "broken display";

const ENGLISH = [
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

/** Some of these lines in other languages, by their place. */
const TRANSLATED = {
  de: {
    0: "Mein Paket sollte am Montag ankommen und ist immer noch nicht da.",
    7: "Gibt es einen Rabatt für Studierende?",
    11: "Der Bildschirm kam mit einem Riss in der Ecke an.",
    16: "Der Ton setzt aus, wenn ich meine Kopfhörer anschließe.",
  },
  es: {
    1: "¿Cómo cambio la contraseña de mi cuenta?",
    8: "La batería dura solo dos horas.",
    12: "¿Dónde puedo descargar el manual?",
    17: "Se me olvidó introducir el cupón al pagar.",
  },
  fr: {
    3: "J'ai été débité deux fois pour la même commande.",
    9: "Je veux résilier mon abonnement à la fin du mois.",
    14: "Veuillez supprimer toutes les données que vous avez sur moi.",
    18: "Quand les chaussures rouges seront-elles de nouveau disponibles ?",
  },
  nl: {
    5: "De blauwe jas is te klein, ik wil graag een grotere.",
    10: "Leveren jullie ook in Noorwegen?",
    15: "Kunnen twee mensen één licentie gebruiken?",
    19: "De koerier heeft de doos in de regen laten staan.",
  },
};

/** The lines for an encoder of these languages, by their codes. */
export function exampleOf(languages) {
  return Object.values({ ...ENGLISH, ...Object.assign({}, ...languages.map((code) => TRANSLATED[code])) });
}
