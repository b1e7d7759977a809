"""Texts that 4-bit weights are fitted on, besides those of calibration: a Gram matrix of few tokens has gaps."""

LONGER_TEXTS = (
    (
        "The baker opened his shop at five every morning, long before the first buses ran. By seven the shelves "
        "were full of rye and wheat, and the windows had steamed over so that children drew faces on them on "
        "their way to school."
    ),
    (
        "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. The reactions that need "
        "light take place in the membranes of the thylakoids; the others, which build the sugar, happen in the "
        "fluid around them."
    ),
    (
        "def merge(left, right):\n    result = []\n    while left and right:\n        source = left if left[0] "
        "<= right[0] else right\n        result.append(source.pop(0))\n    return result + left + right\n"
    ),
    (
        '"Where were you last night?" she asked. "At my sister\'s," he said, without looking up from his '
        'plate. "The trains had stopped, and I did not want to walk home in the rain."'
    ),
    (
        "The treaty of 1648 ended thirty years of war in central Europe. It changed borders, weakened the "
        "emperor, and let each prince choose the religion of his own lands."
    ),
    (
        "To make the dough, mix 500 g of flour with 300 ml of warm water, a teaspoon of salt and 7 g of dry "
        "yeast. Knead it for ten minutes, cover it, and let it rise in a warm place until it has doubled in "
        "size."
    ),
    (
        "Our quarterly revenue rose by 8% to $41.2 million, while costs grew more slowly. We expect margins to "
        "improve in the second half of the year as the new plant in Monterrey reaches full capacity."
    ),
    (
        "The theorem follows by induction. For n = 1 the claim is trivial. Suppose that it holds for n; then "
        "the sum of the first n + 1 odd numbers is n^2 + 2n + 1 = (n + 1)^2, as was to be shown."
    ),
    (
        "<html>\n<head><title>Timetable</title></head>\n<body>\n<ul>\n<li>Monday: 9:00 - "
        "17:00</li>\n<li>Tuesday: closed</li>\n</ul>\n</body>\n</html>"
    ),
    (
        "Great phone for the price. The battery lasts two days, the screen is bright, and calls are clear. My "
        "only complaint is the camera, which struggles in low light. 4 out of 5 stars."
    ),
    (
        "Tokyo, Cairo, Lagos, Mexico City and Mumbai are among the largest cities of the world; Reykjavik, with "
        "about 140,000 people, is the northernmost capital of a sovereign state."
    ),
    (
        "The defendant argued that the contract was void because it had been signed under pressure. The court "
        "disagreed, and ordered him to pay the rent that was due, with interest from the first of May."
    ),
    (
        "Step 1: Turn off the power. Step 2: Remove the four screws at the back. Step 3: Lift the cover and "
        "disconnect the fan. Step 4: Replace the filter, and put everything together in reverse order."
    ),
    (
        "Whales are mammals: they breathe air, feed their calves with milk, and keep a constant body "
        "temperature. The blue whale, at up to 30 metres, is the largest animal that has ever lived."
    ),
    (
        "Subject: Meeting moved to Thursday\n\nHi all,\n\nthe room is taken on Wednesday, so let us meet on "
        "Thursday at 14:30 instead. Please send me your slides by noon.\n\nBest,\nPriya"
    ),
    (
        "In the second half the visitors pressed higher up the pitch, and after 63 minutes they were rewarded: "
        "a long ball from the left found the striker alone, who scored his eleventh goal of the season."
    ),
    (
        "Once upon a time there was a fox who wanted to cross the sea. He asked the gull, and the gull laughed; "
        "he asked the whale, and the whale was asleep; so he built a boat out of reeds and waited for the wind."
    ),
    (
        '{"name": "sensor-17", "location": {"lat": 52.52, "lon": 13.41}, "readings": [21.4, 21.6, 21.9, 22.3], '
        '"unit": "celsius", "active": true}'
    ),
    (
        "Exercise regularly, sleep at least seven hours, and eat plenty of fruit and vegetables. If you smoke, "
        "try to stop; your doctor can recommend a programme that suits you."
    ),
    (
        "The committee has reviewed your application and is pleased to offer you a place in the master's "
        "programme in civil engineering. Please confirm by 30 June whether you accept."
    ),
)
