// Prose that comes with Fovea: ordinary sentences without names, numbers or cities, so that no
// needle is like them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/prose.h"

namespace fovea {
namespace {

constexpr std::string_view kText = R"(
The road into the village runs along the river for most of its length. In spring the water is
high, and the lower meadows stand under it for a week or two. Nobody minds, because the grass
grows better afterwards. The bridge was built by people whose names are written nowhere. It has
held against every flood since then, although each winter takes a little mortar from its joints.
Every few years the mason looks at it, shakes his head, and mends what can be mended. He says that
a bridge is never finished. Most people who hear this think that he is joking.

The bakery opens before it is light. The first loaves come out of the oven while the street is
still empty, and the smell of them reaches as far as the school. Children are told not to stop
there on their way to lessons, and they stop there all the same. The baker keeps a tray of broken
biscuits beneath the counter for them. She was a child in this street herself. Her oven is older
than the house around it. It has to be fed with dry beech wood, and it does not forgive wet logs.
When the wind stands in the north the fire draws badly, and then the bread is late.

Behind the church there is a garden with high walls. The walls keep the warmth of the day until
long after sunset, so that pears ripen there which grow nowhere else in the valley. Somebody
prunes them each winter. It is a slow kind of work, and a person who hurries it will pay for it
two summers later. A tree has a longer memory than the man with the knife. The oldest of the pears
leans on a post, like a traveller who has come a long way and does not mean to go farther. Bees
live in the hollow of its trunk. They were there before anyone can remember, and nobody has ever
asked them to leave.

The school has one large room and one small one. In the large room the younger children learn to
read, and in the small one the older ones learn to argue. The teacher holds that both are the same
art. A good reader, she says, is a person who argues with the page and is willing to lose. Her
pupils do not always understand this. Some of them understand it many years later, on a train or
in a waiting room, and then they wish that they had written to her. She does not expect letters.
She keeps the few that came in a tin on the shelf, between the globe and the box of chalk.

In summer the hay has to be brought in between two rains. Everyone who has hands is needed on such
a day, and nobody asks whose field it is. The carts go back and forth until the moon is up. Those
who are too old to lift a fork bring water and bread, and tell the others how much heavier the hay
was in their own time. It may even be true. The grass on the upper meadow has become thinner,
because the spring above it gives less water than it did. A few of the farmers have begun to let
the cattle graze elsewhere, and to leave the slope to the wild thyme.

The mill has not turned for a long time. Its wheel stands in dry nettles, and swallows nest where
the flour used to fall. A young couple bought it with the idea of making paper. For a year they
carried stones out of the cellar, and for another they read about felt and fibres and presses.
Their first sheets were grey, thick and torn at the edges. They hung them on a line across the
yard as if they were washing. People came to look and went home again without saying much. The
next sheets were better. Now the school writes on them, and the mason draws his plans on them, and
the baker wraps her best cakes in them when there is a wedding.

Weather is the one subject on which everyone has an opinion. The fisherman looks at the swallows,
the baker at the smoke, and the shepherd at nothing at all, since he says that he feels it in his
knees. In most weeks one of them is right. A box with instruments was once set up on the hill by a
society of learned people. They came back after a year, read the instruments with great care, and
wrote down that the valley was wetter than they had supposed. The shepherd could have told them
that. He was not asked.

The library is a cupboard in the hall of the inn. Anyone may take a book, and anyone may leave
one. For a long time there were only novels about the sea, which is far away. Then somebody left a
work on the grafting of fruit trees, and somebody else a grammar of a language that is spoken on
islands. Both have been read by nearly everyone. The innkeeper does not keep a list. He believes
that a book which does not come back has found the place where it was needed. His wife believes
that it has fallen behind a bed, and each autumn she looks there. She is usually right, and he is
usually pleased.

When the first frost comes the boats are drawn up on the bank and turned over. Their owners scrape
the hulls and paint them, always in the same colours as before, since a boat in a new colour is
said to lose its way. Nobody quite believes this, but paint is cheap and rivers are long. Under
the boats the cats spend the winter. They come out at noon, when the sun has warmed the stones,
and go to the kitchen door of the inn one after the other, in an order that never changes. A
stranger once tried to find out how the order was settled. He watched for a whole week, and gave
up.

There is a path over the ridge that leads to the next valley. It is steep, and in places it has
been washed out, so that one has to hold on to roots. In the old days salt was carried over it on
the backs of mules. A stone basin near the top still catches rain for animals that no longer come.
From there one sees both valleys at the same time, and they look so much alike that children ask
which of them is theirs. Their parents show them the bend of the river and the poplars beside it.
On clear evenings the windows of both villages shine, and it is hard to say which lights were lit
first.

Music is made on most evenings in the room above the smithy. There is a fiddle, an accordion that
lacks two of its notes, and a drum that was once a barrel. The players do not agree on how fast a
dance should go. They begin together, drift apart in the middle, and meet again at the end, where
the smith beats time with his boot. Guests from larger places find this charming or terrible,
depending on how long they stay. After the third evening most of them tap their feet in the right
places. Nobody has ever learnt the tunes from paper. They are carried from one pair of hands to
the next, and each pair changes them a little.

The carpenter makes tables, doors, cradles and coffins, and he gives to each the same attention.
Wood, he says, has to be asked before it is cut. Apprentices laugh at this until they have split
their first good board. Then they begin to look at the grain, to knock on it and to listen. By the
second winter they ask without being told. His workshop has a stove, but he seldom lights it, for
fear of the dust. In the cold months he works in a coat and gloves without fingers, and his breath
hangs above the bench like steam above a pot.

A letter takes a few days to arrive, and nobody would want it sooner. The woman who brings the
post knows every door and every dog. She reads no card, but she can tell from the way in which
people hold an envelope whether the news is good. If it is not, she stays a while and speaks about
the state of the road. On her way home she walks along the river, with the empty bag over her
shoulder, and counts the herons. When there are many of them, she says, the summer will be dry.
When there are few, it will be dry as well, since it has been dry for years, and the herons have
gone to look for deeper water.

At the end of the year the lamps are hung along the bridge. Everybody brings one and takes the
same one home in the morning, although it is dark and they are hard to tell apart. There is no
speech. The people stand along the wall and look at the light on the water, which is never still.
Somebody always says that it was a strange year, and somebody else answers that they have all been
strange. Then the baker passes her basket round, and the children are allowed to stay up until the
lamps burn low.
)";

}  // namespace

const Prose& built_in_prose() {
  static const Prose prose = make_prose("built in", kText);
  return prose;
}

}  // namespace fovea
